//! Images of programs, kept on disk.
//!
//! An image runs on the device with the program's rights, so it is read only from a file, in a folder, that no other user can have
//! written.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::Program;
use super::ffi::nvrtc;
use crate::{file, foreign};

/// The largest image that is read, and more than any program has.
const MOST: u64 = 256 << 20;

/// The file that keeps a program's image. It begins with all that the image was made from, which a reader compares, and
/// appears under its name only when it is whole.
pub(super) struct CachedImage {
    path: Option<PathBuf>,
    /// What the image was made from, the lengths of the parts included.
    origin: Vec<u8>,
}

impl CachedImage {
    pub(super) fn new(program: &'static Program, options: &[String]) -> CachedImage {
        let (major, minor) = compiler_version();
        let origin = format!(
            "streamgrad kernels 1\nnvrtc {major}.{minor}\n{}\n{} bytes\n{}",
            options.join(" "),
            program.source.len(),
            program.source
        )
        .into_bytes();
        let file = format!("{}-{:016x}.bin", program.name, fingerprint(&origin));
        CachedImage { path: directory().map(|directory| directory.join(file)), origin }
    }

    /// The image; `None` if there is none that was made from the same, or it is not whole, or another user could have
    /// written it.
    pub(super) fn read(&self) -> Option<Vec<u8>> {
        let path = self.path.as_ref()?;
        check_folder(path.parent()?).ok()?;
        let check = |found: &fs::Metadata| match found.len() {
            0..=MOST => check_owner(found),
            _ => Err(io::ErrorKind::FileTooLarge.into()),
        };
        let bytes = file::read_if(path, check).ok()?;
        let rest = bytes.strip_prefix(&self.origin[..])?;
        let (checksum, image) = rest.split_first_chunk::<8>()?;
        (u64::from_le_bytes(*checksum) == fingerprint(image)).then(|| image.to_vec())
    }

    pub(super) fn write(&self, image: &[u8]) -> io::Result<()> {
        let Some((path, folder)) = self.path.as_ref().and_then(|path| Some((path, path.parent()?))) else {
            return Ok(());
        };
        let mut builder = fs::DirBuilder::new();
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder.recursive(true).create(folder)?;
        check_folder(folder)?;
        let content = [&self.origin[..], &fingerprint(image).to_le_bytes(), image].concat();
        file::replace_by_private(path, &content)
    }
}

/// That no other user can remove or rename what this one puts into a folder.
#[cfg(unix)]
fn check_folder(folder: &Path) -> io::Result<()> {
    use std::os::unix::fs::MetadataExt;
    const ROOT: u32 = 0;
    const STICKY: u32 = 0o1000;
    let found = fs::metadata(folder)?;
    match found.uid() {
        ROOT if found.mode() & STICKY != 0 => Ok(()),
        ROOT => check_mode(&found),
        _ => check_owner(&found),
    }
}

/// That a file or folder is this user's, and nobody else may write it.
#[cfg(unix)]
fn check_owner(found: &fs::Metadata) -> io::Result<()> {
    use std::os::unix::fs::MetadataExt;
    // SAFETY: the function takes nothing and always succeeds.
    if found.uid() != unsafe { libc::geteuid() } {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "another user's"));
    }
    check_mode(found)
}

#[cfg(unix)]
fn check_mode(found: &fs::Metadata) -> io::Result<()> {
    use std::os::unix::fs::MetadataExt;
    const OTHERS_WRITE: u32 = 0o022;
    if found.mode() & OTHERS_WRITE != 0 {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, "other users may write it"));
    }
    Ok(())
}

#[cfg(not(unix))]
fn check_folder(_: &Path) -> io::Result<()> {
    Ok(())
}

#[cfg(not(unix))]
fn check_owner(_: &fs::Metadata) -> io::Result<()> {
    Ok(())
}

/// `STREAMGRAD_CACHE`, or the user's cache folder.
fn directory() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    set("STREAMGRAD_CACHE")
        .or_else(|| set("XDG_CACHE_HOME").map(|cache| cache.join("streamgrad")))
        .or_else(|| set("HOME").map(|home| home.join(".cache").join("streamgrad")))
}

/// FNV-1a: tells files apart and finds damage; what counts is compared in full.
fn fingerprint(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

pub(super) fn compiler_version() -> (i32, i32) {
    let (mut major, mut minor) = (0, 0);
    // SAFETY: the library is present; it writes two numbers.
    unsafe { foreign!(nvrtc::nvrtcVersion(&mut major, &mut minor)) };
    (major, minor)
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    static PROGRAM: Program = Program::new("kept", "extern \"C\" __global__ void none() {}");

    fn kept(name: &str) -> CachedImage {
        let path = std::env::temp_dir().join(format!("streamgrad-{}-{name}", std::process::id()));
        CachedImage { path: Some(path), origin: PROGRAM.source.into() }
    }

    #[test]
    fn what_was_kept_is_read_and_damage_is_not() -> io::Result<()> {
        let kept = kept("damage");
        assert!(kept.read().is_none());
        kept.write(b"image")?;
        assert_eq!(kept.read().as_deref(), Some(&b"image"[..]));
        let Some(path) = &kept.path else { unreachable!("made with a path") };
        let whole = fs::read(path)?;
        for cut in 0..whole.len() {
            fs::write(path, &whole[..cut])?;
            assert!(kept.read().is_none(), "cut to {cut} bytes");
        }
        let other = CachedImage { origin: b"another source".to_vec(), path: kept.path.clone() };
        fs::write(path, &whole)?;
        assert!(other.read().is_none());
        fs::remove_file(path)
    }

    #[test]
    fn what_killed_writers_left_is_removed_and_nothing_else() -> io::Result<()> {
        let folder = std::env::temp_dir().join(format!("streamgrad-{}-left", std::process::id()));
        fs::create_dir_all(&folder)?;
        let kept = CachedImage { path: Some(folder.join("kept-1f.bin")), origin: Vec::new() };
        for name in [
            "kept-1f.bin.7-0.tmp",
            "kept-1f.bin.8-0.tmp",
            "kept-2f.bin.7-0.tmp",
            "kept-1f.tmp",
            "kept-1f.7-0.bin",
        ] {
            fs::write(folder.join(name), "")?;
        }
        let working = File::options().write(true).open(folder.join("kept-1f.bin.8-0.tmp"))?;
        working.lock()?;
        kept.write(b"image")?;
        let entries = fs::read_dir(&folder)?;
        let mut names: Vec<_> = entries.map(|entry| Ok(entry?.file_name())).collect::<io::Result<_>>()?;
        names.sort();
        let left =
            ["kept-1f.7-0.bin", "kept-1f.bin", "kept-1f.bin.8-0.tmp", "kept-1f.tmp", "kept-2f.bin.7-0.tmp"];
        assert_eq!(names, left);
        fs::remove_dir_all(folder)
    }

    #[cfg(unix)]
    #[test]
    fn what_another_user_could_have_written_is_not_read() -> io::Result<()> {
        use std::os::unix::fs::{PermissionsExt, chown};
        let folder = std::env::temp_dir().join(format!("streamgrad-{}-private", std::process::id()));
        let path = folder.join("kept.bin");
        let kept = CachedImage { path: Some(path.clone()), origin: PROGRAM.source.into() };
        let allow = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode));
        let mended = || {
            assert!(kept.read().is_none());
            kept.write(b"image")?;
            assert_eq!(kept.read().as_deref(), Some(&b"image"[..]));
            assert_eq!(fs::metadata(&path)?.permissions().mode() & 0o777, 0o600);
            io::Result::Ok(())
        };
        mended()?;
        assert_eq!(fs::metadata(&folder)?.permissions().mode() & 0o777, 0o700);
        for mode in [0o620, 0o602] {
            allow(&path, mode)?;
            mended()?;
        }
        // A system lets its administrator alone give files away.
        if chown(&path, Some(12345), None).is_ok() {
            mended()?;
        }
        // Larger than any image, and without memory behind it.
        File::options().write(true).open(&path)?.set_len(1 << 40)?;
        mended()?;
        // Nobody writes to it.
        fs::remove_file(&path)?;
        let name = std::ffi::CString::new(path.as_os_str().as_encoded_bytes())?;
        // SAFETY: the name ends with 0.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        mended()?;
        for mode in [0o770, 0o777] {
            allow(&folder, mode)?;
            assert!(kept.read().is_none() && kept.write(b"other").is_err(), "{mode:o}");
        }
        allow(&folder, 0o700)?;
        assert_eq!(kept.read().as_deref(), Some(&b"image"[..]));
        fs::remove_dir_all(folder)
    }
}
