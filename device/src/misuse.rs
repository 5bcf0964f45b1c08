//! What safe code must not do does not compile.

/// Only unsafe code makes a buffer of memory, lends memory, or lets kernels read it.
///
/// ```compile_fail,E0133
/// # use device::{BlockId, Buffer, Stream};
/// fn forge(stream: &Stream) -> Buffer {
///     let block = BlockId { arena: 0, index: 0 };
///     Buffer::from_block(stream, std::ptr::NonNull::dangling(), 1 << 20, block)
/// }
/// ```
///
/// ```compile_fail,E0133
/// # use device::Buffer;
/// fn lend(buffer: &Buffer) {
///     drop(buffer.lend(true));
/// }
/// ```
///
/// ```compile_fail,E0133
/// # use device::cuda::{Grid, Program, Queue};
/// static PROGRAM: Program = Program::new("any", "");
/// fn launch(queue: &Queue<'_>) -> device::Result<()> {
///     queue.kernel(&PROGRAM, "any", Grid::linear(1, 1), &[])
/// }
/// ```
struct Unsafe;

/// A host read or write ends when its closure returns.
///
/// ```compile_fail
/// # use device::Buffer;
/// fn escape(buffer: &Buffer) -> &[u8] {
///     buffer.download(|bytes| bytes).unwrap()
/// }
/// ```
///
/// ```compile_fail
/// # use device::Buffer;
/// fn escape(buffer: &Buffer) -> &mut [u8] {
///     buffer.update(|bytes| bytes).unwrap()
/// }
/// ```
struct Escapes;

/// What is used on another thread may be.
///
/// ```compile_fail,E0277
/// # use device::Stream;
/// fn send(stream: &Stream) {
///     let value = std::rc::Rc::new(1);
///     stream.launch_host("any", &[], move || drop(value)).unwrap();
/// }
/// ```
///
/// ```compile_fail,E0277
/// # use device::Team;
/// fn share(team: &Team) {
///     let value = std::cell::Cell::new(1);
///     team.run(&|_| value.set(2)).unwrap();
/// }
/// ```
///
/// ```compile_fail,E0277
/// # use device::SpinLock;
/// fn sync(_: impl Sync) {}
/// let lock = SpinLock::new(std::cell::Cell::new(1));
/// sync(lock.lock());
/// ```
///
/// ```compile_fail,E0521
/// # use device::Stream;
/// fn outlive(stream: &Stream, value: &mut i32) {
///     stream.launch_host("any", &[], || *value = 1).unwrap();
/// }
/// ```
struct Threads;

/// Elements are the types whose layout kernels rely on.
///
/// ```compile_fail,E0277
/// #[derive(Clone, Copy, Debug, Default, PartialEq)]
/// struct Mine(u8);
/// impl device::Element for Mine {
///     const DTYPE: device::DType = device::DType::F64;
/// }
/// ```
struct Elements;
