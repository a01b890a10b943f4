//! Trees on a real file system.

use std::fs::{self, Permissions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::time::{Duration, SystemTime};

use super::*;
use crate::sys::xattr;

struct Trees(tempfile::TempDir);

impl Trees {
    fn new() -> Self {
        // Not on a tmpfs, which has no user attributes before Linux 6.6.
        let trees = Self(tempfile::tempdir_in("/var/tmp").unwrap());
        for name in ["image", "volume", "elsewhere"] {
            fs::create_dir(trees.at(name)).unwrap();
        }
        trees
    }

    fn at(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    fn write(&self, path: &str, text: &str) {
        fs::create_dir_all(self.at(path).parent().unwrap()).unwrap();
        fs::write(self.at(path), text).unwrap();
    }

    fn read(&self, path: &str) -> String {
        fs::read_to_string(self.at(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    fn seed(&self) -> Seeded {
        seed(&self.at("image"), &self.at("volume")).unwrap_or_else(|error| panic!("{error}"))
    }
}

#[test]
fn everything_that_a_workspace_holds_is_copied_once() {
    let trees = Trees::new();
    trees.write("image/src/main.py", "print()");
    trees.write("image/src/deep/er/data", "x");
    fs::set_permissions(trees.at("image/src/main.py"), Permissions::from_mode(0o4751)).unwrap();
    fs::set_permissions(trees.at("image/src/deep"), Permissions::from_mode(0o555)).unwrap();
    symlink("../etc/passwd", trees.at("image/link")).unwrap();
    fs::hard_link(trees.at("image/src/main.py"), trees.at("image/other-name")).unwrap();
    let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
    for path in ["image/src/main.py", "image/src/deep/er", "image/src"] {
        File::open(trees.at(path)).unwrap().set_modified(long_ago).unwrap();
    }
    let sparse = File::create(trees.at("image/sparse")).unwrap();
    sparse.write_all_at(b"end", 8 << 20).unwrap();
    xattr::set(&sparse, c"user.note", b"kept").unwrap();
    nix::unistd::mkfifo(&trees.at("image/pipe"), Mode::S_IRWXU).unwrap();
    let seeded = trees.seed();
    assert!(!seeded.earlier && seeded.kept == 0, "{seeded:?}");
    assert_eq!(seeded.notes.len(), 1, "{seeded:?}");
    assert!(seeded.notes[0].ends_with("image/pipe is left out: it is a named pipe"), "{seeded:?}");
    assert_eq!(trees.read("volume/src/main.py"), "print()");
    assert_eq!(trees.read("volume/src/deep/er/data"), "x");
    let of = |path: &str| fs::symlink_metadata(trees.at(path)).unwrap();
    assert_eq!(of("volume/src/main.py").mode() & 0o7777, 0o751);
    assert_eq!(of("volume/src/deep").mode() & 0o777, 0o555);
    assert_eq!(fs::read_link(trees.at("volume/link")).unwrap(), Path::new("../etc/passwd"));
    assert_eq!(of("volume/src/main.py").ino(), of("volume/other-name").ino());
    for path in ["volume/src/main.py", "volume/src/deep/er", "volume/src"] {
        assert_eq!(of(path).modified().unwrap(), long_ago, "{path}");
    }
    let sparse = of("volume/sparse");
    assert_eq!(sparse.len(), (8 << 20) + 3);
    assert!(sparse.blocks() * 512 < 1 << 20, "{} blocks", sparse.blocks());
    let copy = File::open(trees.at("volume/sparse")).unwrap();
    assert_eq!(xattr::get(&copy, c"user.note").unwrap().as_deref(), Some(b"kept".as_slice()));
    assert!(!trees.at("volume").join(STAGING).exists() && trees.at("volume").join(MARK).exists());
    // A second time nothing is looked at, whatever has become of it.
    fs::remove_file(trees.at("volume/link")).unwrap();
    trees.write("volume/src/main.py", "mine");
    assert!(trees.seed().earlier);
    assert!(!trees.at("volume/link").exists() && trees.read("volume/src/main.py") == "mine");
}

#[test]
fn what_is_in_the_volume_stays_and_nothing_of_it_leads_out() {
    let trees = Trees::new();
    trees.write("image/notes", "the image's");
    trees.write("image/out/planted", "x");
    trees.write("image/there/new", "new");
    trees.write("image/file-here/below", "x");
    trees.write("volume/notes", "the user's");
    trees.write("volume/there/old", "old");
    trees.write("volume/file-here", "a file");
    fs::set_permissions(trees.at("image/there"), Permissions::from_mode(0o700)).unwrap();
    fs::set_permissions(trees.at("volume/there"), Permissions::from_mode(0o750)).unwrap();
    symlink(trees.at("elsewhere"), trees.at("volume/out")).unwrap();
    let seeded = trees.seed();
    assert_eq!(trees.read("volume/notes"), "the user's");
    assert_eq!(trees.read("volume/there/new") + &trees.read("volume/there/old"), "newold");
    assert_eq!(trees.read("volume/file-here"), "a file");
    assert_eq!(fs::metadata(trees.at("volume/there")).unwrap().mode() & 0o777, 0o750);
    assert!(!trees.at("elsewhere/planted").exists(), "{seeded:?}");
    assert_eq!(seeded.kept, 3, "{seeded:?}");
    // Control: without the link the same directory is copied.
    let trees = Trees::new();
    trees.write("image/out/planted", "x");
    trees.seed();
    assert_eq!(trees.read("volume/out/planted"), "x");
}

#[test]
fn a_copy_that_was_killed_is_gone_on_with() {
    let trees = Trees::new();
    for number in 0..20 {
        trees.write(&format!("image/d{number}/file"), &"x".repeat(1000));
    }
    fs::hard_link(trees.at("image/d3/file"), trees.at("image/d4/second")).unwrap();
    // As the kill leaves it: some whole files, half of one, a directory without its mode, no mark.
    let staging = trees.at("volume").join(STAGING);
    fs::create_dir(&staging).unwrap();
    fs::write(staging.join(OURS), "").unwrap();
    fs::write(staging.join("17"), "xxx").unwrap();
    trees.write("volume/d3/file", &"x".repeat(1000));
    fs::set_permissions(trees.at("volume/d3"), Permissions::from_mode(0o700)).unwrap();
    let seeded = trees.seed();
    assert_eq!((seeded.files, seeded.kept), (19, 1), "{seeded:?}");
    assert_eq!(fs::metadata(trees.at("volume/d3")).unwrap().mode() & 0o777, 0o755);
    for number in 0..20 {
        assert_eq!(trees.read(&format!("volume/d{number}/file")).len(), 1000);
    }
    let of = |path: &str| fs::metadata(trees.at(path)).unwrap().ino();
    assert_eq!(of("volume/d3/file"), of("volume/d4/second"));
    assert!(!staging.exists());
}

#[test]
fn a_copy_that_is_killed_at_any_moment_ends_whole() {
    let trees = Trees::new();
    for number in 0..40 {
        trees.write(&format!("image/d{}/file{number}", number % 7), &format!("{number}").repeat(5000));
    }
    for micros in [0, 200, 500, 1000, 2000, 3000, 5000] {
        let volume = trees.at(&format!("v{micros}"));
        fs::create_dir(&volume).unwrap();
        match crate::sys::process::fork().unwrap() {
            crate::sys::process::Side::Child => {
                let _ = seed(&trees.at("image"), &volume);
                crate::sys::process::exit_now(0)
            }
            crate::sys::process::Side::Parent(child) => {
                std::thread::sleep(Duration::from_micros(micros));
                let _ = nix::sys::signal::kill(child, nix::sys::signal::Signal::SIGKILL);
                let _ = nix::sys::wait::waitpid(child, None);
            }
        }
        // Whatever has its name is whole, and the mark is not there before everything is.
        let complete = |number: usize| {
            let found = fs::read_to_string(volume.join(format!("d{}/file{number}", number % 7)));
            found.map(|text| assert_eq!(text, format!("{number}").repeat(5000))).is_ok()
        };
        let all = (0..40).filter(|&number| complete(number)).count() == 40;
        assert!(all || !volume.join(MARK).exists(), "{micros}");
        seed(&trees.at("image"), &volume).unwrap();
        assert!((0..40).all(complete), "{micros}");
    }
}

#[test]
fn what_cannot_be_copied_is_explained() {
    let trees = Trees::new();
    let error = |from: &str, to: &str| seed(&trees.at(from), &trees.at(to)).unwrap_err().to_string();
    trees.write("image/file", "x");
    assert!(error("image/file", "volume").contains("expected the image's directory"));
    assert!(error("image", "missing").starts_with("open the volume "));
    fs::create_dir(trees.at("image/inside")).unwrap();
    assert!(error("image", "image/inside").contains("would copy itself"));
    // An image without the directory has nothing to give, and says so.
    let seeded = seed(&trees.at("absent"), &trees.at("volume")).unwrap();
    assert!(seeded.notes[0].contains("the workspace begins empty"), "{seeded:?}");
    assert!(trees.seed().earlier);
}
