use std::fs;

use super::*;
use crate::egress::tls::authority::Authority;

#[test]
fn a_file_of_certificates_is_whole_or_refused() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = directory.path().join(name);
        fs::write(&path, text).unwrap();
        path
    };
    let (one, two) = (Authority::generate(None).unwrap(), Authority::generate(Some("two")).unwrap());
    let both = format!("a comment\n{}between\n{}", one.certificate_pem(), two.certificate_pem());
    assert_eq!(certificates(&file("both", &both)).unwrap().len(), 2);
    let cut = both.trim_end().strip_suffix("-----END CERTIFICATE-----").unwrap();
    let second = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    for (name, text, says) in [
        ("empty", "", "no certificate in it"),
        ("other", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", "no certificate in it"),
        ("cut", cut, "certificate 2 cannot be read (its END line is missing)"),
        ("zeros", &format!("{}{second}", one.certificate_pem()), "certificate 2 cannot be read (it is no X.509"),
        ("junk", &second.replace("AAAA", "A&A"), "certificate 1 cannot be read (it is not Base64)"),
    ] {
        let path = file(name, text);
        let error = certificates(&path).unwrap_err().to_string();
        assert!(error.starts_with(path.to_str().unwrap()) && error.contains(says), "{error}");
    }
    let missing = directory.path().join("missing");
    assert!(matches!(certificates(&missing), Err(BundleError::Unreadable { path, .. }) if path == missing));
    assert!(matches!(certificates(directory.path()), Err(BundleError::Unreadable { .. })));
    let large = file("large", "");
    fs::OpenOptions::new().write(true).open(&large).unwrap().set_len(BUNDLE_BYTES + 1).unwrap();
    assert!(matches!(certificates(&large), Err(BundleError::TooLarge(path)) if path == large));
}
