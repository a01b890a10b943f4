use super::*;
use crate::egress::tls::authority::Authority;

fn certificate(name: &str) -> String {
    Authority::generate(Some(name)).unwrap().certificate_pem().to_owned()
}

fn count(text: &str) -> usize {
    certificates(text.as_bytes()).count()
}

#[test]
fn the_bundle_extends_what_the_image_trusts() {
    let directory = tempfile::tempdir().unwrap();
    let put = |name: &str, text: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let [own, system, image, extra, corporate] = ["own", "system", "image", "extra", "corporate"].map(certificate);
    let system_file = put("system", &system);
    let image_file = put("image", &format!("# of the image\n{image}{system}"));
    let extra_file = put("extra", &extra);
    let corporate_file = put("corporate", &corporate);
    let variable = |name: &str| match name {
        "SSL_CERT_FILE" | "CURL_CA_BUNDLE" => Some(image_file.clone().into_os_string()),
        "REQUESTS_CA_BUNDLE" => Some(directory.path().join("missing").into_os_string()),
        "NODE_EXTRA_CA_CERTS" => Some(extra_file.clone().into_os_string()),
        "PIP_CERT" => Some("".into()),
        _ => None,
    };
    let found = Some((system_file, system.clone().into_bytes()));
    let files = Image::read(variable, found);
    let trust = Trust::extend(files.clone(), &own, std::slice::from_ref(&corporate_file));
    // By way of another container it comes to the same.
    assert_eq!(Trust::extend(Gathered::from(files), &own, &[corporate_file]), trust);
    let (ca, bundle) = (&trust.ca, &trust.bundle);
    assert!(bundle.starts_with(&own) && ca.starts_with(&own));
    for certificate in [&own, &system, &image, &extra, &corporate] {
        assert_eq!(bundle.matches(certificate.as_str()).count(), 1);
    }
    assert_eq!((count(bundle), count(ca)), (5, 3));
    assert!(ca.contains(&extra) && ca.contains(&corporate) && !ca.contains(&system));
    assert!(matches!(&trust.notes[..], [note] if note.contains("REQUESTS_CA_BUNDLE") && note.contains("missing")));
    let alone = Trust::extend(Image::read(|_| None, None), &own, &[]);
    assert_eq!((&alone.bundle, &alone.ca), (&own, &own));
    assert!(matches!(&alone.notes[..], [note] if note.contains("ca-certificates")));
}

#[test]
fn nothing_but_certificates_is_copied() {
    let own = certificate("own");
    let secret = "root:$6$salt$hash:1:0:99999:7:::\n";
    let key = "-----BEGIN PRIVATE KEY-----\nMIGHAgEAMBMGByqGSM49\n-----END PRIVATE KEY-----\n";
    let dressed = format!("{BEGIN}\n{secret}{END}\n{BEGIN}\n{key}{END}\n");
    let file = format!("{secret}{key}{own}{secret}{dressed}{BEGIN}\nMIIB");
    let gathered = Gathered::from(Image::read(|_| None, Some(("/x".into(), file.clone().into_bytes()))));
    assert_eq!(gathered.everybody, own);
    // What comes from another container is not believed to be that.
    let sent = Gathered { everybody: file.clone(), added: String::new(), notes: vec!["x".into(); 1000] };
    let trust = Trust::extend(sent, &own, &[]);
    assert_eq!((trust.bundle, trust.ca, trust.notes.len()), (own.clone(), own.clone(), 32));
    // More than anybody trusts is cut, and the sandbox's own is not what is left out.
    let filler: String = (0..TRUST_BYTES / 100).map(|n| format!("{BEGIN}\nMI{n:0>200}\n{END}\n")).collect();
    let trust = Trust::extend(Image::read(|_| None, Some(("/x".into(), filler.into_bytes()))), &own, &[]);
    assert!(trust.bundle.starts_with(&own) && trust.bundle.len() < TRUST_BYTES * 5 / 4);
    assert!(matches!(&trust.notes[..], [note] if note.contains("left out")));
}

#[test]
fn every_variable_is_a_path_of_one_of_the_two_files() {
    let variables = variables(Path::new(TRUST_DIRECTORY));
    assert_eq!(variables.len(), REPLACING.len() + ADDING.len());
    for (name, path) in variables {
        let expected =
            if ADDING.contains(&name.as_str()) { "/run/openshell/tls/ca.pem" } else { "/run/openshell/tls/bundle.pem" };
        assert_eq!(path, expected, "{name}");
    }
}

#[test]
fn a_key_beside_the_sandbox_s_ca_goes_nowhere_and_what_is_no_ca_is_refused() {
    let ca = rcgen::generate_simple_self_signed(["sandbox.example".to_owned()]).unwrap();
    let (certificate, key) = (ca.cert.pem().replace("\r\n", "\n"), ca.signing_key.serialize_pem());
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), format!("{key}{certificate}")).unwrap();
    assert_eq!(authority(file.path()).unwrap(), certificate);
    std::fs::write(file.path(), &key).unwrap();
    assert!(authority(file.path()).unwrap_err().to_string().contains("no certificate in it"));
    assert!(authority(Path::new("/nonexistent")).is_err());
}

#[test]
fn what_a_killed_run_left_is_no_hindrance() {
    let directory = tempfile::tempdir().unwrap();
    let left = directory.path().join(".ca.pem.new");
    std::fs::write(&left, "half").unwrap();
    std::fs::set_permissions(&left, std::fs::Permissions::from_mode(0o444)).unwrap();
    Trust { ca: "a".into(), bundle: "b".into(), notes: Vec::new() }.write(directory.path()).unwrap();
    assert_eq!(std::fs::read_to_string(directory.path().join(CA)).unwrap(), "a");
    assert!(!left.exists());
}

#[test]
fn both_files_are_written_for_all_to_read() {
    let directory = tempfile::tempdir().unwrap();
    let trust = Trust { ca: "a".into(), bundle: "b".into(), notes: Vec::new() };
    for _ in 0..2 {
        trust.write(directory.path()).unwrap();
        for (name, text) in [(CA, "a"), (BUNDLE, "b")] {
            let path = directory.path().join(name);
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
            assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o444);
        }
    }
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 2);
    let error = trust.write(&directory.path().join("missing")).unwrap_err();
    assert!(error.to_string().contains("missing/ca.pem"), "{error}");
}
