//! Files that are read and written whole.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Permissions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use device::{Error, Result};

/// The bytes of a file.
///
/// # Errors
/// `Io` with the path.
pub fn read(path: impl AsRef<Path>) -> Result<Vec<u8>> {
    let path = path.as_ref();
    fs::read(path).map_err(|error| io_error(path, error))
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
    Unfinished::beside(path).and_then(|file| file.finish(bytes)).map_err(|error| io_error(path, error))
}

/// Checks that [`write()`] could begin, and leaves nothing behind: for before a long computation. Returns the file that would
/// be written, the same path for all that lead to it.
///
/// # Errors
/// As [`write()`].
pub fn check_writable(path: impl AsRef<Path>) -> Result<PathBuf> {
    let path = path.as_ref();
    Unfinished::beside(path).map(|file| file.target.clone()).map_err(|error| io_error(path, error))
}

fn io_error(path: &Path, source: io::Error) -> Error {
    Error::Io { path: path.display().to_string().into(), source: Arc::new(source) }
}

/// A file beside the one that it becomes. It is locked while its writer lives, and removed if it is not finished.
struct Unfinished {
    target: PathBuf,
    path: PathBuf,
    file: File,
}

impl Unfinished {
    fn beside(path: &Path) -> io::Result<Unfinished> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let (target, permissions) = resolve(path)?;
        let stem = stem(&target).ok_or(ErrorKind::InvalidInput)?;
        remove_abandoned(folder(&target), &stem);
        loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let mut name = stem.clone();
            name.push(format!(".{}-{number}{SUFFIX}", std::process::id()));
            let path = target.with_file_name(name);
            let file = match File::create_new(&path) {
                // A process of this number on another machine, or in another container, may share the folder.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
                file => file?,
            };
            // Without locks, nobody removes another's file.
            let _ = file.lock();
            let unfinished = Unfinished { target: target.clone(), path, file };
            // Another writer may have taken the file for an abandoned one before it was locked.
            if unfinished.path.try_exists()? {
                if let Some(permissions) = permissions {
                    unfinished.file.set_permissions(permissions)?;
                }
                return Ok(unfinished);
            }
        }
    }

    fn finish(mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)?;
        // Else a crash could leave the new name with nothing behind it.
        self.file.sync_all()?;
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
        Ok(found) if found.is_dir() => Err(ErrorKind::IsADirectory.into()),
        Ok(found) if !found.is_file() => Err(io::Error::new(ErrorKind::InvalidInput, "not a regular file")),
        Ok(found) => {
            // A file that may not be written is not replaced, either.
            File::options().write(true).open(path)?;
            Ok((fs::canonicalize(path)?, Some(found.permissions())))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
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
                return Err(ErrorKind::IsADirectory.into());
            }
            let name = target.file_name().ok_or(ErrorKind::InvalidInput)?;
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
        if let Ok(file) = File::options().write(true).open(&path)
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
