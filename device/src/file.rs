//! Files that are read and written whole.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::{Error, ErrorKind, Result};

/// The bytes of a regular file, as many as it has when it is opened.
///
/// # Errors
/// `Io` with the path, also if it names a device, a pipe or anything else that is no regular file, or if there is no memory for
/// so many bytes.
pub fn read(path: impl AsRef<Path>) -> Result<Vec<u8>> {
    read_if(path, |_| Ok(()))
}

/// As [`read()`], if `check` accepts what the system knows of the open file, such as its length or its owner.
///
/// # Errors
/// As [`read()`], and the error of `check`.
pub fn read_if(path: impl AsRef<Path>, check: impl FnOnce(&Metadata) -> io::Result<()>) -> Result<Vec<u8>> {
    let path = path.as_ref();
    let contents = || {
        let file = without_waiting().read(true).open(path)?;
        // Of what was opened: another file may have the name by now.
        let found = file.metadata()?;
        if !found.is_file() {
            return Err(not_regular(&found));
        }
        check(&found)?;
        check_memory(found.len())?;
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(usize::try_from(found.len()).map_err(|_| io::ErrorKind::FileTooLarge)?)?;
        file.take(found.len()).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    contents().map_err(|error| io_error(path, error))
}

/// A regular file that is read in parts.
#[derive(Debug)]
pub struct Source {
    path: PathBuf,
    file: File,
    len: u64,
}

impl Source {
    /// Opens a file.
    ///
    /// # Errors
    /// `Io` with the path, also if it names anything that is no regular file.
    pub fn open(path: impl AsRef<Path>) -> Result<Source> {
        let path = path.as_ref();
        let opened = || {
            let file = without_waiting().read(true).open(path)?;
            let found = file.metadata()?;
            if found.is_file() { Ok((file, found.len())) } else { Err(not_regular(&found)) }
        };
        let (file, len) = opened().map_err(|error| io_error(path, error))?;
        Ok(Source { path: path.to_owned(), file, len })
    }

    /// The path that it was opened with.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes of the file when it was opened.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// `len` bytes from `start` on.
    ///
    /// # Errors
    /// `Io` with the path, also if the file ends before, or if there is no memory for so many bytes.
    pub fn read(&self, start: u64, len: usize) -> Result<Vec<u8>> {
        let part = || {
            check_memory(len as u64)?;
            let mut bytes = Vec::new();
            bytes.try_reserve_exact(len)?;
            bytes.resize(len, 0);
            #[cfg(unix)]
            std::os::unix::fs::FileExt::read_exact_at(&self.file, &mut bytes, start)?;
            #[cfg(not(unix))]
            io::Seek::seek(&mut &self.file, io::SeekFrom::Start(start))
                .and_then(|_| (&self.file).read_exact(&mut bytes))?;
            Ok(bytes)
        };
        part().map_err(|error| io_error(&self.path, error))
    }
}

/// Options to open a file with that do not wait if the path names a pipe: the file is looked at once it is open.
fn without_waiting() -> OpenOptions {
    #[cfg(unix)]
    {
        let mut options = File::options();
        std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NONBLOCK | libc::O_NOCTTY);
        options
    }
    #[cfg(not(unix))]
    File::options()
}

fn check_memory(bytes: u64) -> io::Result<()> {
    let detail = || format!("{bytes} bytes, more than this machine has memory");
    if bytes > memory() { Err(io::Error::new(io::ErrorKind::OutOfMemory, detail())) } else { Ok(()) }
}

/// How many bytes of memory the machine has.
fn memory() -> u64 {
    #[cfg(unix)]
    {
        // SAFETY: the function takes any number, and knows these.
        let [pages, bytes] =
            [libc::_SC_PHYS_PAGES, libc::_SC_PAGESIZE].map(|name| unsafe { libc::sysconf(name) });
        if let (Ok(pages @ 1..), Ok(bytes)) = (u64::try_from(pages), u64::try_from(bytes)) {
            return pages.saturating_mul(bytes);
        }
    }
    u64::MAX
}

fn not_regular(found: &Metadata) -> io::Error {
    if found.is_dir() {
        return io::ErrorKind::IsADirectory.into();
    }
    io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")
}

/// Makes a file of these bytes, in place of the one that is there, whose permissions it takes over.
///
/// The bytes are written to a file beside `path`, which is renamed once they are on the disk: whatever happens, the old
/// content is there or the new one. A symbolic link stays, and its target is replaced. Files that killed writers of
/// `path` have left beside it are removed.
///
/// # Errors
/// `Io` with the path, also if it names a folder, a device, a pipe or anything else that is no regular file, or a file
/// that may not be written. What was there is unchanged then.
pub fn write(path: impl AsRef<Path>, bytes: &[u8]) -> Result<()> {
    let path = path.as_ref();
    let write = |mut file: Unfinished| {
        file.file.write_all(bytes)?;
        // Else a crash could leave the new name with nothing behind it.
        file.file.sync_all()?;
        file.finish()
    };
    Unfinished::of(path).and_then(write).map_err(|error| io_error(path, error))
}

/// Replaces whatever has the name by a file that only its owner can read and write. After a crash of the system its content
/// may be lost or cut.
#[cfg(feature = "cuda")]
pub(crate) fn replace_by_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = Unfinished::beside(path.to_owned(), 0o600)?;
    file.file.write_all(bytes)?;
    file.finish()
}

/// Checks that [`write()`] could begin, and leaves nothing behind: for before a long computation. Returns the file that would
/// be written, the same path for all that lead to it.
///
/// # Errors
/// As [`write()`].
pub fn check_writable(path: impl AsRef<Path>) -> Result<PathBuf> {
    let path = path.as_ref();
    Unfinished::of(path).map(|file| file.target.clone()).map_err(|error| io_error(path, error))
}

/// The error of a file at `path`.
#[cold]
#[track_caller]
pub fn io_error(path: &Path, source: io::Error) -> Error {
    Error::new(ErrorKind::Io { path: path.display().to_string().into(), source: Arc::new(source) })
}

/// A file beside the one that it becomes. It is locked while its writer lives, and removed if it is not finished.
struct Unfinished {
    target: PathBuf,
    path: PathBuf,
    file: File,
}

impl Unfinished {
    /// For the file at `path`, or behind its symbolic links, with the permissions of the one that is there.
    fn of(path: &Path) -> io::Result<Unfinished> {
        let (target, permissions) = resolve(path)?;
        let unfinished = Unfinished::beside(target, 0o666)?;
        if let Some(permissions) = permissions {
            unfinished.file.set_permissions(permissions)?;
        }
        Ok(unfinished)
    }

    /// For the file `target`, with permissions `mode` less those that the process masks; on Unix only.
    fn beside(target: PathBuf, mode: u32) -> io::Result<Unfinished> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let stem = stem(&target).ok_or(io::ErrorKind::InvalidInput)?;
        remove_abandoned(folder(&target), &stem);
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let mut name = stem.clone();
            name.push(format!(".{}-{number}{SUFFIX}", std::process::id()));
            let path = target.with_file_name(name);
            let mut options = File::options();
            let options = options.write(true).create_new(true);
            #[cfg(unix)]
            std::os::unix::fs::OpenOptionsExt::mode(options, mode);
            #[cfg(not(unix))]
            let _ = mode;
            let file = match options.open(&path) {
                // A process of this number on another machine, or in another container, may share the folder.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                file => file?,
            };
            // Without locks, nobody removes another's file.
            let _ = file.lock();
            let unfinished = Unfinished { target: target.clone(), path, file };
            // Another writer may have taken the file for an abandoned one before it was locked.
            if unfinished.path.try_exists()? {
                return Ok(unfinished);
            }
        }
    }

    fn finish(self) -> io::Result<()> {
        fs::rename(&self.path, &self.target)
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        // Its name is its own: there is nothing to remove once it is renamed.
        let _ = fs::remove_file(&self.path);
    }
}

const SUFFIX: &str = ".tmp";

/// The path behind all symbolic links, and the permissions of the file that is there.
fn resolve(path: &Path) -> io::Result<(PathBuf, Option<Permissions>)> {
    match fs::metadata(path) {
        Ok(found) if !found.is_file() => Err(not_regular(&found)),
        Ok(found) => {
            // A file that may not be written is not replaced, either.
            without_waiting().write(true).open(path)?;
            Ok((fs::canonicalize(path)?, Some(found.permissions())))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            // Links in a circle are another error.
            let mut target = path.to_owned();
            while let Ok(next) = fs::read_link(&target) {
                target = target.parent().unwrap_or(Path::new("")).join(next);
            }
            // `folder/` and `folder/.` have a file name to `Path`, and no file can have it.
            if !target
                .as_os_str()
                .as_encoded_bytes()
                .ends_with(target.file_name().unwrap_or_default().as_encoded_bytes())
            {
                return Err(io::ErrorKind::IsADirectory.into());
            }
            let name = target.file_name().ok_or(io::ErrorKind::InvalidInput)?;
            Ok((fs::canonicalize(folder(&target))?.join(name), None))
        }
        Err(error) => Err(error),
    }
}

/// Where `target` is.
fn folder(target: &Path) -> &Path {
    target.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// What the names of unfinished files for `target` begin with: its name, or as much of it as leaves room for the rest.
fn stem(target: &Path) -> Option<OsString> {
    const MOST: usize = 100;
    let name = target.file_name()?;
    if name.len() <= MOST {
        return Some(name.to_owned());
    }
    let name = name.to_string_lossy();
    let end = (0..=MOST).rfind(|&at| name.is_char_boundary(at))?;
    Some(name[..end].into())
}

/// Removes unfinished files with this stem that nobody holds a lock on: their writers have ended.
fn remove_abandoned(folder: &Path, stem: &OsStr) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
        if !is_file || !is_unfinished(entry.file_name().as_encoded_bytes(), stem) {
            continue;
        }
        let path = entry.path();
        // Locked until it is removed, so that no writer takes it for its own.
        if let Ok(file) = without_waiting().write(true).open(&path)
            && file.try_lock().is_ok()
        {
            let _ = fs::remove_file(path);
        }
    }
}

/// Whether a file of this name is one that [`Unfinished::beside`] makes with this stem.
fn is_unfinished(name: &[u8], stem: &OsStr) -> bool {
    let number = |text: &[u8]| !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    let middle = || {
        let middle = name
            .strip_prefix(stem.as_encoded_bytes())?
            .strip_prefix(b".")?
            .strip_suffix(SUFFIX.as_bytes())?;
        let dash = middle.iter().position(|&byte| byte == b'-')?;
        Some((&middle[..dash], &middle[dash + 1..]))
    };
    middle().is_some_and(|(process, count)| number(process) && number(count))
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    /// A device without an end and a pipe that nobody writes to are refused, and so is a file larger than the memory.
    #[test]
    fn what_has_no_end_is_not_read() -> io::Result<()> {
        let folder = std::env::temp_dir().join(format!("streamgrad-{}-endless", std::process::id()));
        fs::create_dir_all(&folder)?;
        let [pipe, link, sparse, whole] = ["pipe", "link", "sparse", "whole"].map(|name| folder.join(name));
        let name = std::ffi::CString::new(pipe.as_os_str().as_encoded_bytes())?;
        // SAFETY: the name ends with 0.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        std::os::unix::fs::symlink("/dev/zero", &link)?;
        File::create(&sparse)?.set_len(1 << 43)?;
        for path in [Path::new("/dev/zero"), &link, &pipe, &folder, &sparse] {
            let error = read(path).map_or_else(|error| error, |_| unreachable!("{path:?}"));
            assert!(matches!(error.kind(), ErrorKind::Io { .. }), "{error}");
            assert!(error.to_string().contains(&path.display().to_string()), "{error}");
        }
        fs::write(&whole, "content")?;
        assert!(read(&whole).is_ok_and(|bytes| bytes == b"content"));
        let refuse = |found: &Metadata| Err(io::Error::other(format!("{} bytes", found.len())));
        assert!(read_if(&whole, refuse).is_err_and(|error| error.to_string().ends_with("whole: 7 bytes")));
        fs::remove_dir_all(folder)
    }
}
