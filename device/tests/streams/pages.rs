//! A CUDA device's addresses: pages get and lose their memory, and a call that fails leaves them as they were.

use std::path::Path;
use std::process::Command;
use std::ptr::NonNull;

use device::{AddressSpace, BlockId, Buffer, CudaConfig, Device, Error, ErrorKind, Result, Stream};

use crate::common::TestPool;

/// A CUDA device of its own, if there is one that has pages.
fn paged() -> Option<Device> {
    let device = Device::cuda_with(0, CudaConfig::default()).ok()?;
    device.memory_driver().address_space().is_some().then_some(device)
}

/// Neighbouring pages of reserved addresses.
struct Range<'a> {
    space: &'a dyn AddressSpace,
    start: NonNull<u8>,
    pages: usize,
}

impl<'a> Range<'a> {
    fn reserve(space: &'a dyn AddressSpace, pages: usize) -> Result<Range<'a>> {
        Ok(Range { space, start: space.reserve(pages * space.page_bytes())?, pages })
    }

    fn at(&self, page: usize) -> NonNull<u8> {
        // SAFETY: the range has more pages than that.
        unsafe { self.start.add(page * self.space.page_bytes()) }
    }

    fn commit(&self, first: usize, pages: usize) -> Result<()> {
        // SAFETY: the pages are in the range.
        unsafe { self.space.commit(self.at(first), pages * self.space.page_bytes()) }
    }

    fn decommit(&self, first: usize, pages: usize) -> Result<()> {
        // SAFETY: the pages are in the range, and the tests wait for what uses them.
        unsafe { self.space.decommit(self.at(first), pages * self.space.page_bytes()) }
    }

    /// Writes to both ends of neighbouring pages and reads it again.
    fn works(&self, stream: &Stream, first: usize, pages: usize) -> Result<bool> {
        stream.device().pool_or_init(|| Box::new(TestPool::new(stream.device())));
        let bytes = pages * self.space.page_bytes();
        // SAFETY: the pages have memory, which is nobody else's, and the pool only takes note of the block.
        let buffer = unsafe {
            Buffer::from_block(stream, self.at(first), bytes, BlockId { arena: 0, index: first as u32 })
        };
        stream.upload("ends", &buffer, 0, &[7, 8])?;
        stream.upload("ends", &buffer, bytes - 1, &[9])?;
        buffer.download(|found| found[..2] == [7, 8] && found[bytes - 1] == 9)
    }
}

impl Drop for Range<'_> {
    fn drop(&mut self) {
        // SAFETY: it is what was reserved, and the tests wait for what uses it.
        unsafe { self.space.release(self.start, self.pages * self.space.page_bytes()) }
    }
}

#[test]
fn pages_get_and_lose_memory() -> Result<()> {
    let Some(device) = paged() else { return Ok(()) };
    let stream = device.default_stream();
    let Some(space) = device.memory_driver().address_space() else { return Ok(()) };
    let range = Range::reserve(space, 8)?;
    assert_eq!(range.start.as_ptr().addr() % space.page_bytes(), 0);
    range.commit(0, 3)?;
    range.commit(3, 2)?;
    assert!(range.works(&stream, 0, 5)?, "two commits are neighbours");
    range.decommit(2, 2)?;
    assert!(range.works(&stream, 0, 2)? && range.works(&stream, 4, 1)?);
    range.commit(2, 1)?;
    assert!(range.works(&stream, 0, 3)?);
    Ok(())
}

/// What may fail is tried until it does not; nothing fails twice.
fn twice<T>(call: impl Fn() -> Result<T>) -> Result<T> {
    call().or_else(|_| call())
}

/// Uses pages while one call of the driver fails. The driver's log says what is left at the end.
#[test]
#[ignore = "run by the test below"]
fn inner_pages() -> Result<()> {
    let Some(device) = paged() else { return Ok(()) };
    let stream = device.default_stream();
    let Some(space) = device.memory_driver().address_space() else { return Ok(()) };
    let range = twice(|| Range::reserve(space, 8))?;
    twice(|| range.commit(0, 4))?;
    assert!(range.works(&stream, 0, 4)?);
    twice(|| range.decommit(1, 2))?;
    assert!(range.works(&stream, 0, 1)? && range.works(&stream, 3, 1)?);
    let fails = std::env::var("CUDA_EMULATOR_FAIL").unwrap_or_default();
    // 2 pages of the device's memory are in use here, and what is undone is not lost.
    let memory =
        std::env::var("PAGES").ok().and_then(|pages| pages.parse::<usize>().ok()).unwrap_or_default();
    let other = twice(|| Range::reserve(space, 2 * memory))?;
    let refused = other.commit(0, memory - 1);
    let all = (memory - 1) * space.page_bytes();
    assert!(
        (!fails.is_empty() && matches!(refused.as_ref().map_err(Error::kind), Err(ErrorKind::Driver { .. })))
            || matches!(refused.as_ref().map_err(Error::kind), Err(ErrorKind::OutOfMemory { requested_bytes, .. }) if *requested_bytes == all),
        "{refused:?}"
    );
    // Whatever a refused commit could not undo is there for the next one, on either range.
    twice(|| range.commit(5, 1))?;
    assert!(range.works(&stream, 5, 1)?);
    twice(|| other.commit(1, memory - 3))?;
    assert!(other.works(&stream, 1, memory - 3)?);
    Ok(())
}

#[test]
fn a_call_that_fails_leaves_pages_as_they_were() {
    let emulated = paged().is_some_and(|device| device.description().to_lowercase().contains("emulat"));
    if !emulated {
        println!("skipped: only the emulated driver fails on demand");
        return;
    }
    let run = |pages: usize, fail: &str, log: &Path| {
        let mut command = Command::new(std::env::current_exe().unwrap_or_default());
        command.args(["--exact", "pages::inner_pages", "--ignored"]).env("CUDA_EMULATOR_LOG", log);
        command.env("CUDA_EMULATOR_PAGE", "64K").env("CUDA_EMULATOR_FAIL", fail);
        command.env("CUDA_EMULATOR_MEMORY", format!("{}K", 64 * pages)).env("PAGES", pages.to_string());
        let output = command.output().unwrap_or_else(|error| unreachable!("{error}"));
        let text = std::fs::read_to_string(log).unwrap_or_default();
        let _ = std::fs::remove_file(log);
        assert!(output.status.success(), "{fail}: {}", String::from_utf8_lossy(&output.stdout));
        assert!(
            text.contains("live device=0 allocations=0 handles=0 mappings=0 ranges=0\n"),
            "{fail}: {:?}",
            text.lines().find(|line| line.starts_with("live"))
        );
        text
    };
    let log = std::env::temp_dir().join(format!("streamgrad-pages-{}", std::process::id()));
    for pages in [16, 7] {
        let sound = run(pages, "", &log);
        for function in [
            "cuMemAddressReserve",
            "cuMemCreate",
            "cuMemMap",
            "cuMemRelease",
            "cuMemSetAccess",
            "cuMemUnmap",
            "cuMemAddressFree",
        ] {
            let calls = sound.lines().filter(|line| line.split(' ').next() == Some(function)).count();
            assert!(calls >= 2, "{calls} calls of {function}");
            for call in 1..=calls {
                let text = run(pages, &format!("{function}:{call}"), &log);
                assert!(text.contains("made to fail"), "{function}:{call}");
            }
        }
        // What an undo left is refused again, and taken over.
        let text = run(pages, "cuMemUnmap:2,cuMemUnmap:3", &log);
        assert_eq!(text.lines().filter(|line| line.contains("made to fail")).count(), 2);
    }
}
