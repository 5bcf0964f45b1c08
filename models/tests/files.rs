//! What is saved is whole, in the place that its path means, and alone there.
#![allow(clippy::unwrap_used)]

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;

use device::{Device, Error, ErrorKind, Result};
use models::{
    InMemory, Text, checkpoint,
    data::{CsvOptions, idx, npy, npz},
    file, mlp,
};
use tensor::Tensor;

/// A folder of the test's own, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("streamgrad-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn save_checkpoint(path: &Path) -> Result<()> {
    checkpoint::save(path, &mlp(&[64, 128, 10], 1, &Device::cpu())?)
}

fn save_array(path: &Path) -> Result<()> {
    npy::save(path, &Tensor::from_slice(&[1_u8, 2, 3], &[3], &Device::cpu())?)
}

/// Everything that writes a file.
const SAVERS: [fn(&Path) -> Result<()>; 3] = [save_checkpoint, save_array, |path| npz::save(path, &[])];

#[test]
fn a_file_is_replaced_whole() {
    let folder = Folder::new("whole");
    let path = folder.0.join("saved");
    for save in SAVERS {
        fs::write(&path, "what was there").unwrap();
        let mut old = File::open(&path).unwrap();
        save(&path).unwrap();
        let mut content = String::new();
        old.read_to_string(&mut content).unwrap();
        assert_eq!(content, "what was there", "who had it open can still read it");
        assert_ne!(fs::read(&path).unwrap(), content.as_bytes());
        assert_eq!(folder.names(), ["saved"]);
    }
}

#[test]
fn what_killed_writers_left_is_removed_and_nothing_else() {
    let folder = Folder::new("abandoned");
    let path = folder.0.join("saved");
    for save in SAVERS {
        let others = ["other.1-0.tmp", "saved.1-.tmp", "saved.tmp", "saved.x-1.tmp", "saved.1-0.tmpx"];
        for name in others.iter().chain(&["saved.1-0.tmp", "saved.4194304-12.tmp", "saved.2-0.tmp"]) {
            fs::write(folder.0.join(name), "").unwrap();
        }
        fs::create_dir_all(folder.0.join("saved.3-0.tmp")).unwrap();
        // A writer that is at work.
        let working = File::options().write(true).open(folder.0.join("saved.2-0.tmp")).unwrap();
        working.lock().unwrap();
        save(&path).unwrap();
        let mut expected = [&others[..], &["saved", "saved.2-0.tmp", "saved.3-0.tmp"]].concat();
        expected.sort_unstable();
        assert_eq!(folder.names(), expected);
    }
}

/// File systems take 255 bytes.
#[test]
fn a_long_name_can_be_saved() {
    let folder = Folder::new("long");
    for name in ["x".repeat(250), "x".repeat(255), "\u{e4}".repeat(127)] {
        let short: String = name.chars().take(100 / name.chars().next().unwrap().len_utf8()).collect();
        for save in SAVERS {
            let path = folder.0.join(&name);
            fs::write(folder.0.join(format!("{short}.1-0.tmp")), "").unwrap();
            save(&path).unwrap();
            assert_eq!(folder.names(), [&*name]);
            fs::remove_file(path).unwrap();
        }
    }
}

#[test]
fn writers_of_one_file_leave_each_other_alone() {
    let folder = Folder::new("writers");
    let path = folder.0.join("saved");
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| (0..100).for_each(|_| save_array(&path).unwrap()));
        }
    });
    assert_eq!(npy::load(&path, &Device::cpu()).unwrap().to_vec::<u8>().unwrap(), [1, 2, 3]);
    assert_eq!(folder.names(), ["saved"]);
}

#[test]
fn a_name_that_another_process_of_the_same_number_has_is_left_to_it() {
    let folder = Folder::new("numbers");
    let path = folder.0.join("saved");
    let working: Vec<_> = (0..64)
        .map(|number| {
            let name = format!("saved.{}-{number}.tmp", std::process::id());
            let file = File::create(folder.0.join(name)).unwrap();
            file.lock().unwrap();
            file
        })
        .collect();
    file::write(&path, b"new").unwrap();
    assert_eq!((fs::read(&path).unwrap(), folder.names().len()), (b"new".to_vec(), working.len() + 1));
}

#[test]
fn a_folder_that_is_not_there_is_refused_before_the_work() {
    let folder = Folder::new("missing");
    for end in ["/", "/.", "//", "/./"] {
        let path = PathBuf::from(format!("{}{end}", folder.0.join("new").display()));
        assert!(
            matches!(file::check_writable(&path).as_ref().map_err(Error::kind), Err(ErrorKind::Io { .. })),
            "{path:?}"
        );
        assert!(
            matches!(file::write(&path, b"x").as_ref().map_err(Error::kind), Err(ErrorKind::Io { .. })),
            "{path:?}"
        );
    }
    assert!(folder.names().is_empty());
}

#[cfg(unix)]
mod unix {
    use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};

    use super::*;

    #[test]
    fn a_symbolic_link_stays_and_its_target_is_replaced() {
        let folder = Folder::new("links");
        let (link, inner) = (folder.0.join("link"), folder.0.join("inner"));
        fs::create_dir(&inner).unwrap();
        // A link to a link, relative to where each of them is; at first the last one points to nothing.
        symlink("inner/link", &link).unwrap();
        symlink("../target", inner.join("link")).unwrap();
        for save in SAVERS {
            for _ in 0..2 {
                save(&link).unwrap();
                assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
                assert!(fs::symlink_metadata(inner.join("link")).unwrap().is_symlink());
                assert!(fs::symlink_metadata(folder.0.join("target")).unwrap().len() > 0);
                assert_eq!(folder.names(), ["inner", "link", "target"]);
            }
            fs::remove_file(folder.0.join("target")).unwrap();
        }
        let circle = folder.0.join("circle");
        symlink("circle", &circle).unwrap();
        for save in SAVERS {
            assert!(matches!(save(&circle).as_ref().map_err(Error::kind), Err(ErrorKind::Io { .. })));
            assert!(fs::symlink_metadata(&circle).unwrap().is_symlink());
        }
    }

    #[test]
    fn what_is_no_regular_file_is_refused() {
        let folder = Folder::new("irregular");
        let (pipe, null) = (folder.0.join("pipe"), folder.0.join("null"));
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        symlink("/dev/null", &null).unwrap();
        for save in SAVERS {
            for path in [&pipe, &null] {
                let error = save(path).unwrap_err();
                assert!(matches!(error.kind(), ErrorKind::Io { .. }), "{error}");
                let message = error.to_string();
                assert!(message.contains(path.to_str().unwrap()), "{message}");
                assert!(message.contains("not a regular file"), "{message}");
            }
            assert!(matches!(save(&folder.0).as_ref().map_err(Error::kind), Err(ErrorKind::Io { .. })));
            assert!(fs::symlink_metadata(&pipe).unwrap().file_type().is_fifo());
            assert!(fs::symlink_metadata(&null).unwrap().is_symlink());
            assert_eq!(folder.names(), ["null", "pipe"]);
        }
    }

    /// Before the file is there and afterwards.
    #[test]
    fn all_paths_of_a_file_lead_to_one() {
        let folder = Folder::new("paths");
        fs::create_dir(folder.0.join("inner")).unwrap();
        symlink("../new", folder.0.join("inner/link")).unwrap();
        symlink("inner", folder.0.join("other")).unwrap();
        let path = |path: &str| file::check_writable(folder.0.join(path)).unwrap();
        for _ in 0..2 {
            for same in ["./new", "inner/../new", "inner/link", "other/link", "other/../new"] {
                assert_eq!(path(same), path("new"), "{same}");
            }
            assert_ne!(path("inner/new"), path("new"));
            assert_eq!(path("inner/new"), path("other/new"));
            file::write(folder.0.join("new"), b"").unwrap();
        }
    }

    #[test]
    fn permissions_stay() {
        let folder = Folder::new("permissions");
        let path = folder.0.join("saved");
        for save in SAVERS {
            fs::write(&path, "secret").unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            save(&path).unwrap();
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        }
    }
}

/// Everything that reads a file.
const READERS: [fn(&Path) -> Result<()>; 6] = [
    |path| checkpoint::load(path, &mlp(&[2, 2], 1, &Device::cpu())?),
    |path| npy::load(path, &Device::cpu()).map(drop),
    |path| npz::load(path, &Device::cpu()).map(drop),
    |path| idx::load(path, &Device::cpu()).map(drop),
    |path| Text::read(path).map(drop),
    |path| InMemory::read_csv(path, 2, &CsvOptions::default()).map(drop),
];

/// A device without an end and a pipe that nobody writes to are no files to read.
#[cfg(unix)]
#[test]
fn what_has_no_end_is_not_read() {
    let folder = Folder::new("endless");
    let pipe = folder.0.join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let link = folder.0.join("link");
    std::os::unix::fs::symlink("/dev/zero", &link).unwrap();
    for read in READERS {
        for path in [Path::new("/dev/zero"), &link, &pipe, &folder.0] {
            let error = read(path).unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::Io { .. }), "{error}");
            assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
        }
        // A file larger than the memory, with nothing in it, of which a checkpoint's header is read only.
        let sparse = folder.0.join("sparse");
        File::create(&sparse).unwrap().set_len(1 << 43).unwrap();
        let refused = read(&sparse).unwrap_err();
        assert!(matches!(refused.kind(), ErrorKind::Io { .. } | ErrorKind::Format { .. }), "{refused}");
    }
}
