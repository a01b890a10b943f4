//! What of the machine is out of sight.

use super::*;

#[test]
fn sockets_and_credentials_are_out_of_sight() {
    let directory = tempfile::tempdir().unwrap();
    let (bound, hidden, kept) = (
        directory.path().join("agent.sock"),
        directory.path().join("hidden"),
        directory.path().join("hidden/deep/kept"),
    );
    let _listener = UnixListener::bind(&bound).unwrap();
    fs::create_dir_all(&kept).unwrap();
    fs::write(kept.join("file"), "kept").unwrap();
    fs::write(hidden.join("secret"), "secret").unwrap();
    fs::write(directory.path().join("single"), "secret").unwrap();
    fs::write(directory.path().join("visible"), "visible").unwrap();
    std::os::unix::fs::symlink(&kept, hidden.join("link")).unwrap();
    for path in [directory.path(), &hidden, &kept] {
        fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    }
    UnixStream::connect(&bound).unwrap();
    let isolation = Isolation {
        hide: vec![hidden.clone(), directory.path().join("single"), directory.path().join("missing")],
        keep: keep(&[&kept, &hidden.join("link"), &directory.path().join("gone")]),
        ..isolation()
    };
    let look = |_handover: Handover| {
        assert!(UnixStream::connect(&bound).is_err());
        assert_eq!(fs::read_to_string(directory.path().join("visible")).unwrap(), "visible");
        assert_eq!(fs::read(directory.path().join("single")).unwrap_or_default(), b"");
        assert!(!hidden.join("secret").exists());
        assert_eq!(fs::read_to_string(kept.join("file")).unwrap(), "kept");
        assert_eq!(fs::read_to_string(hidden.join("link/file")).unwrap(), "kept");
        let mut names: Vec<_> = fs::read_dir(&hidden).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["deep", "link"]);
        assert!(fs::read_dir("/run").unwrap().next().is_none());
        assert!(fs::write("/run/new", "").is_err());
        assert!(fs::write(hidden.join("new"), "").is_err());
        // The stage is gone.
        assert!(Path::new("/usr/bin").exists());
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounts.lines().any(|line| line.split(' ').nth(4) == Some("/usr")), "{mounts}");
    };
    inside(&isolation, look);
    inside_as_user(&isolation, look);
    // Nothing of it shows outside.
    UnixStream::connect(&bound).unwrap();
    assert_eq!(fs::read_to_string(hidden.join("secret")).unwrap(), "secret");
}

#[test]
fn a_link_in_tmp_hides_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("file"), "visible").unwrap();
    let link = PathBuf::from(format!("/tmp/ssh-planted-{}", std::process::id()));
    std::os::unix::fs::symlink(directory.path(), &link).unwrap();
    let agent = PathBuf::from(format!("/tmp/ssh-real-{}", std::process::id()));
    fs::create_dir(&agent).unwrap();
    fs::write(agent.join("key"), "secret").unwrap();
    inside(&isolation(), |_handover| {
        assert!(directory.path().join("file").exists());
        assert!(!agent.join("key").exists());
    });
    assert!(agent.join("key").exists());
    fs::remove_file(&link).unwrap();
    fs::remove_dir_all(&agent).unwrap();
}

#[test]
fn the_root_directory_is_never_covered() {
    let error = child::run(|| {
        let isolation = Isolation { hide: vec![PathBuf::from("/")], ..isolation() };
        isolate(&isolation).unwrap_err().to_string().into_bytes()
    });
    let error = String::from_utf8(error.unwrap()).unwrap();
    assert!(error.contains("root directory"), "{error}");
}

#[test]
fn a_socket_mounted_elsewhere_is_found_by_its_mount_point() {
    let directory = tempfile::tempdir().unwrap();
    let (bound, mounted) = (directory.path().join("runtime.sock"), directory.path().join("mounted here"));
    let control = directory.path().join("control.sock");
    let _listeners = (UnixListener::bind(&bound).unwrap(), UnixListener::bind(&control).unwrap());
    fs::write(&mounted, "").unwrap();
    let answer = child::run(|| {
        // As in a container: the socket is bound in another network namespace, so that /proc/net/unix has it not.
        unshare(CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS).unwrap();
        mounts::make_private().unwrap();
        let (flags, none) = (nix::mount::MsFlags::MS_BIND, None::<&str>);
        nix::mount::mount(Some(&bound), &mounted, none, flags, none).unwrap();
        assert!(!outside::bound_sockets().unwrap().contains(&bound));
        UnixStream::connect(&mounted).unwrap();
        isolate(&isolation()).unwrap_or_else(|error| panic!("{error}"));
        assert!(UnixStream::connect(&mounted).is_err());
        // Control: what is neither listed nor mounted stays in reach. (The first is listed by now: the end of the
        // connection above that waits to be accepted has its name and lives in this namespace.)
        UnixStream::connect(&control).unwrap();
        Vec::new()
    });
    answer.unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn a_policy_may_name_a_socket_but_not_a_hidden_directory() {
    let directory = tempfile::tempdir().unwrap();
    let bound = directory.path().join("granted.sock");
    let _listener = UnixListener::bind(&bound).unwrap();
    let isolation = Isolation { keep: keep(&[&bound, Path::new("/run")]), ..isolation() };
    inside(&isolation, |handover| {
        UnixStream::connect(&bound).unwrap();
        assert!(fs::read_dir("/run").unwrap().next().is_none());
        assert!(handover.notes.iter().any(|note| note.contains("/run stays hidden")), "{:?}", handover.notes);
    });
}

#[test]
fn a_hidden_path_that_leads_into_the_stage_is_hidden() {
    let directory = tempfile::tempdir().unwrap();
    let link = directory.path().join("link");
    std::os::unix::fs::symlink("/usr/share", &link).unwrap();
    inside(&Isolation { hide: vec![link], ..isolation() }, |_handover| {
        assert!(fs::read_dir("/usr/share").unwrap().next().is_none());
    });
    assert!(fs::read_dir("/usr/share").unwrap().next().is_some());
}

#[test]
fn covers_stay_where_they_are_without_capabilities() {
    use nix::mount::{MntFlags, umount2};
    inside(&isolation(), |_handover| {
        become_user();
        assert_eq!(umount2("/run", MntFlags::MNT_DETACH).unwrap_err(), Errno::EPERM);
    });
    // Control: with them, they go.
    inside(&isolation(), |_handover| {
        umount2("/run", MntFlags::MNT_DETACH).unwrap();
        assert!(fs::read_dir("/run").unwrap().next().is_some());
    });
}

#[test]
fn abstract_sockets_of_the_machine_are_out_of_reach() {
    use std::os::linux::net::SocketAddrExt;
    let name = format!("openshell-test-{}", std::process::id());
    let address = std::os::unix::net::SocketAddr::from_abstract_name(&name).unwrap();
    let _listener = UnixListener::bind_addr(&address).unwrap();
    UnixStream::connect_addr(&address).unwrap();
    inside(&isolation(), |_handover| {
        let error = UnixStream::connect_addr(&address).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused, "{error}");
    });
}

#[test]
fn named_places_are_what_the_environment_names_and_what_is_there() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("agent");
    let _listener = UnixListener::bind(&socket).unwrap();
    let work = directory.path().join("work");
    fs::create_dir(&work).unwrap();
    let named = |runtime: &str, agent: &Path| {
        let (runtime, agent) = (PathBuf::from(runtime), agent.to_path_buf());
        outside::named_places(move |name| match name {
            "SSH_AUTH_SOCK" => Some(agent.clone().into_os_string()),
            "XDG_RUNTIME_DIR" => Some(runtime.clone().into_os_string()),
            "DOCKER_HOST" => Some("unix:///nowhere/docker.sock".into()),
            _ => None,
        })
    };
    fs::set_permissions(directory.path(), std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    let own = directory.path().to_str().unwrap();
    assert_eq!(named(own, &socket), [socket.clone(), directory.path().to_path_buf()]);
    assert_eq!(named("/tmp", &work), Vec::<PathBuf>::new());
    fs::set_permissions(directory.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    assert_eq!(named(own, &socket), std::slice::from_ref(&socket));
}
