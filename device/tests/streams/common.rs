//! A device for each schedule, a pool that keeps every block, and commands whose results tell their order.

use std::any::Any;
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use device::cuda::{PinnedMemory, Queue};
use device::{
    AddressSpace, Binder, BlockId, Buffer, Cpu, CpuConfig, CudaConfig, Device, ErrorKind, MemoryDriver,
    Moment, Policy, Pool, Result, Schedule, SpinLock, Stream, SyncStats, Use, Work,
};

/// How many words a buffer has that [`buffer`] makes.
pub(crate) const WORDS: usize = 8;

/// A CPU device of its own for each schedule.
pub(crate) fn each_cpu_schedule(check: impl Fn(&Device) -> Result<()>) -> Result<()> {
    [Schedule::Inline, Schedule::Threads, Schedule::Delay { seed: 1 }].into_iter().try_for_each(|schedule| {
        println!("{schedule:?}");
        check(&fresh(schedule))
    })
}

/// Whether the CPU's schedules are left out, which do not depend on a driver's: `STREAMGRAD_TEST_DEVICE` is `cuda`.
fn cuda_alone() -> bool {
    std::env::var("STREAMGRAD_TEST_DEVICE").is_ok_and(|name| name == "cuda")
}

/// Explored devices, where nothing runs before somebody synchronises.
fn each_explored(check: impl Fn(&Device) -> Result<()>) -> Result<()> {
    (0..8).try_for_each(|seed| check(&fresh(Schedule::Explore(Policy::Random { seed }))))
}

/// As [`each_cpu_schedule`], and on explored devices.
pub(crate) fn each_cpu_order(check: impl Fn(&Device) -> Result<()>) -> Result<()> {
    each_explored(&check)?;
    each_cpu_schedule(check)
}

/// As [`each_schedule`], and on explored devices.
pub(crate) fn each_order(check: impl Fn(&Device) -> Result<()>) -> Result<()> {
    if !cuda_alone() {
        each_explored(&check)?;
    }
    each_schedule(check)
}

/// As [`each_host_memory`], and a CUDA device with its own memory, if there is one: pages, which no host function may
/// touch.
pub(crate) fn each_schedule(check: impl Fn(&Device) -> Result<()>) -> Result<()> {
    each_host_memory(&check)?;
    match Device::cuda_with(0, CudaConfig::default()) {
        Ok(device) if on_pages(&device) => {
            println!("CUDA, pages");
            check(&device)
        }
        Ok(_) => Ok(()),
        Err(error) if matches!(error.kind(), ErrorKind::CudaUnavailable { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Whether CUDA is the emulated driver's.
pub(crate) fn emulated() -> bool {
    Device::cuda_with(0, CudaConfig::default())
        .is_ok_and(|device| device.description().to_lowercase().contains("emulat"))
}

/// Whether buffers are in pages of a CUDA device's memory.
pub(crate) fn on_pages(device: &Device) -> bool {
    !device.runs_on_host() && device.memory_driver().address_space().is_some()
}

/// A device of its own for each schedule, and a CUDA device with memory that host functions can use, if there is one.
pub(crate) fn each_host_memory(check: impl Fn(&Device) -> Result<()>) -> Result<()> {
    if !cuda_alone() {
        each_cpu_schedule(&check)?;
    }
    match PinnedMemory::new(0) {
        Ok(memory) => {
            println!("CUDA");
            let config = CudaConfig { memory: Some(Arc::new(memory)), ..CudaConfig::default() };
            check(&Device::cuda_with(0, config)?)
        }
        Err(error) if matches!(error.kind(), ErrorKind::CudaUnavailable { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

pub(crate) fn fresh(schedule: Schedule) -> Device {
    Device::cpu_with(CpuConfig { threads: Some(1), schedule, ..CpuConfig::default() })
}

pub(crate) fn new_streams<const N: usize>(device: &Device) -> Result<[Stream; N]> {
    let streams = (0..N).map(|_| device.new_stream()).collect::<Result<Vec<_>>>()?;
    Ok(streams.try_into().unwrap_or_else(|_| unreachable!("as many as asked for")))
}

/// What was counted while `run` ran.
pub(crate) fn counted(device: &Device, run: impl FnOnce() -> Result<()>) -> Result<SyncStats> {
    let before = device.sync_stats();
    run()?;
    Ok(device.sync_stats() - before)
}

/// Gives every buffer a block of its own and frees the blocks when the device goes.
pub(crate) struct TestPool {
    driver: Arc<dyn MemoryDriver>,
    blocks: SpinLock<Vec<(NonNull<u8>, usize)>>,
    released: SpinLock<Vec<(BlockId, Vec<Moment>)>>,
    /// Where there are pages: the one that all blocks are in.
    page: Option<NonNull<u8>>,
}

// SAFETY: the pointers are addresses that this pool owns.
unsafe impl Send for TestPool {}
// SAFETY: as above; they are behind a lock.
unsafe impl Sync for TestPool {}

impl Pool for TestPool {
    unsafe fn release(&self, block: BlockId, uses: &[Moment]) -> Option<Device> {
        self.released.lock().push((block, uses.to_vec()));
        None
    }
}

impl Drop for TestPool {
    fn drop(&mut self) {
        if let (Some(page), Some(space)) = (self.page, self.driver.address_space()) {
            // SAFETY: the range was reserved with this size, and the device has nothing left to run.
            return unsafe { space.release(page, space.page_bytes()) };
        }
        for (ptr, bytes) in self.blocks.get_mut().drain(..) {
            // SAFETY: each block came from this driver with this size, and the device has nothing left to run.
            unsafe { self.driver.free(ptr, bytes) };
        }
    }
}

impl TestPool {
    /// A pool that allocates plainly.
    pub(crate) fn new(device: &Device) -> TestPool {
        TestPool {
            driver: Arc::clone(device.memory_driver()),
            blocks: SpinLock::new(Vec::new()),
            released: SpinLock::new(Vec::new()),
            page: None,
        }
    }

    /// Memory for another block, all zeros.
    fn allocate(&self, bytes: usize) -> Result<NonNull<u8>> {
        if let Some(page) = self.page {
            let number = self.blocks.lock().len();
            let Some(offset) = Some(number * 256).filter(|offset| offset + bytes <= PAGE_USED) else {
                unreachable!("no test has so many buffers")
            };
            // SAFETY: the page has that many bytes.
            return Ok(unsafe { page.add(offset) });
        }
        let ptr = self.driver.allocate(bytes)?;
        // SAFETY: the range was just allocated with this size, and the host may write it.
        unsafe { ptr.write_bytes(0, bytes) };
        Ok(ptr)
    }

    /// The blocks that came back, with their last uses.
    pub(crate) fn released(&self) -> Vec<(BlockId, Vec<Moment>)> {
        self.released.lock().clone()
    }
}

/// How much of a page the buffers of a test may take: no page is smaller.
const PAGE_USED: usize = 64 << 10;

/// A page with memory, its first [`PAGE_USED`] bytes zeros; another device's commands write them, since those of the device
/// under test are counted.
fn page_of_zeros(space: &dyn AddressSpace) -> Result<NonNull<u8>> {
    let page = space.reserve(space.page_bytes())?;
    // SAFETY: the range was just reserved.
    unsafe { space.commit(page, space.page_bytes())? };
    let other = Device::cuda_with(0, CudaConfig::default())?;
    let stream = other.default_stream();
    other.pool_or_init(|| Box::new(TestPool::new(&other)));
    // SAFETY: the page has memory, which nobody else uses yet, and the pool only takes note of the block.
    let whole = unsafe { Buffer::from_block(&stream, page, PAGE_USED, BlockId { arena: 0, index: 0 }) };
    stream.upload("zeros", &whole, 0, &[0; PAGE_USED])?;
    stream.synchronize()?;
    Ok(page)
}

pub(crate) fn pool(device: &Device) -> &TestPool {
    let pool: &dyn Any = device.pool_or_init(|| {
        let mut pool = TestPool::new(device);
        if on_pages(device)
            && let Some(space) = device.memory_driver().address_space()
        {
            let page = page_of_zeros(space);
            pool.page = Some(page.unwrap_or_else(|error| unreachable!("a page for the test: {error}")));
        }
        Box::new(pool)
    });
    pool.downcast_ref().unwrap_or_else(|| unreachable!("these tests make no other pool"))
}

/// A buffer of [`WORDS`] zeros, allocated on `stream`.
pub(crate) fn buffer(stream: &Stream) -> Result<Buffer> {
    let pool = pool(stream.device());
    let bytes = WORDS * size_of::<u64>();
    let ptr = pool.allocate(bytes)?;
    let mut blocks = pool.blocks.lock();
    blocks.push((ptr, bytes));
    let block = BlockId { arena: 0, index: blocks.len() as u32 - 1 };
    // SAFETY: the pool never hands the block out again.
    Ok(unsafe { Buffer::from_block(stream, ptr, bytes, block) })
}

/// The words of a buffer, for commands that name it in their uses.
#[derive(Clone, Copy)]
pub(crate) struct Words(*mut u64);

// SAFETY: an address; commands follow it in the order that the device gives them.
unsafe impl Send for Words {}
// SAFETY: as above.
unsafe impl Sync for Words {}

impl Words {
    pub(crate) fn of(buffer: &Buffer) -> Self {
        Words(buffer.ptr().cast())
    }

    pub(crate) fn get(self) -> [u64; WORDS] {
        // SAFETY: a test buffer has this many initialised words, and the command was launched with it in its uses.
        unsafe { self.0.cast::<[u64; WORDS]>().read_volatile() }
    }

    pub(crate) fn set(self, words: [u64; WORDS]) {
        // SAFETY: as in `get`, and the command was launched as one that writes it.
        unsafe { self.0.cast::<[u64; WORDS]>().write_volatile(words) }
    }
}

/// Sets every word to `value`.
pub(crate) fn set(stream: &Stream, buffer: &Buffer, value: u64) -> Result<()> {
    if on_pages(stream.device()) {
        return stream.upload("set", buffer, 0, &value.to_ne_bytes().repeat(WORDS));
    }
    let words = Words::of(buffer);
    stream.launch_host("set", &[Use::write(buffer)], move || words.set([value; WORDS]))
}

/// Copies a buffer.
pub(crate) fn copy(stream: &Stream, from: &Buffer, to: &Buffer) -> Result<()> {
    let (uses, words) =
        ([Use::read(from), Use::write(to)], Copy { from: Words::of(from), to: Words::of(to) });
    if on_pages(stream.device()) {
        return stream.launch("copy", &uses, words);
    }
    // A driver that copies from the host's memory to the host's makes the caller wait for it.
    stream.launch_host("copy", &uses, move || words.to.set(words.from.get()))
}

/// A copy of one test buffer to another.
struct Copy {
    from: Words,
    to: Words,
}

impl Work for Copy {
    fn run(&self, _: &Cpu<'_>) {
        self.to.set(self.from.get());
    }

    fn enqueue(&self, queue: &Queue<'_>) -> Result<()> {
        // SAFETY: both are buffers of the tests, of one size and apart, and the command's uses.
        unsafe { queue.copy(self.to.0.cast(), self.from.0.cast(), WORDS * size_of::<u64>()) }
    }

    fn bind(&mut self, binder: &mut dyn Binder) {
        self.from.0 = binder.address(self.from.0.cast()).cast();
        self.to.0 = binder.address(self.to.0.cast()).cast();
    }
}

/// The first word, once the last write has run.
pub(crate) fn value(buffer: &Buffer) -> Result<u64> {
    buffer.download(first_word)
}

pub(crate) fn first_word(bytes: &[u8]) -> u64 {
    device::from_bytes::<i64>(bytes)[0] as u64
}

/// A command that tells when it runs.
pub(crate) struct Told {
    stream: Stream,
    receiver: Receiver<()>,
}

/// Launches a command that tells when it runs.
pub(crate) fn tell(stream: &Stream, uses: &[Use<'_>]) -> Result<Told> {
    Ok(Told { stream: stream.clone(), receiver: send(stream, uses)? })
}

/// Launches a command that sends something when it runs.
pub(crate) fn send(stream: &Stream, uses: &[Use<'_>]) -> Result<Receiver<()>> {
    let (sender, receiver) = channel();
    stream.launch_host("tell", uses, move || {
        // Nobody has to listen.
        let _ = sender.send(());
    })?;
    Ok(receiver)
}

/// Whether a told command has not run after a while.
pub(crate) fn is_waiting(told: &Told) -> bool {
    !told.ran_within(Duration::from_millis(20))
}

/// Whether a told command runs soon.
pub(crate) fn runs(told: &Told) -> bool {
    told.ran_within(Duration::from_secs(20))
}

impl Told {
    /// Whether the command has run.
    pub(crate) fn ran(&self) -> bool {
        self.receiver.try_recv().is_ok()
    }

    /// Waits for the command without waiting for the device: a driver may do nothing for who never looks.
    fn ran_within(&self, time: Duration) -> bool {
        let start = Instant::now();
        loop {
            match self.receiver.recv_timeout(Duration::from_millis(1)) {
                Ok(()) => return true,
                Err(RecvTimeoutError::Disconnected) => return false,
                Err(RecvTimeoutError::Timeout) if start.elapsed() > time => return false,
                Err(RecvTimeoutError::Timeout) => drop(self.stream.is_idle()),
            }
        }
    }
}

/// Whether something is sent soon.
pub(crate) fn arrives(receiver: &Receiver<()>) -> bool {
    receiver.recv_timeout(Duration::from_secs(20)).is_ok()
}

/// Whether something becomes true soon.
pub(crate) fn eventually(condition: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    while !condition() {
        if start.elapsed() > Duration::from_secs(20) {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    true
}

/// Panics without a report on standard error.
pub(crate) fn fail(message: &'static str) {
    std::panic::resume_unwind(Box::new(message));
}

/// A folder that goes with this.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("streamgrad-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap_or_else(|error| unreachable!("{error}"));
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
