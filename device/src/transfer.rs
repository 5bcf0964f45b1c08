//! Copies from the host and between devices.

use std::ops::Range;
use std::sync::Arc;

use crate::bytes::SendPtr;
use crate::cuda::Queue;
use crate::graph::capture::Capture;
use crate::order::RunsOn;
use crate::recorder::{CommandKind, Label};
use crate::writes::Operand;
use crate::{Binder, Buffer, Cpu, Error, Result, Stream, Use, Work};

impl Stream {
    /// Copies `bytes` into `buffer` from its byte `offset` on. If the stream cannot run the copy at once, the bytes
    /// are kept for it.
    ///
    /// # Errors
    /// As for [`launch`](Self::launch); `InvalidArgument` if the range is not inside the buffer.
    #[derive::located]
    pub fn upload(&self, op: &'static str, buffer: &Buffer, offset: usize, bytes: &[u8]) -> Result<()> {
        let is_inside = buffer.has_range(offset, bytes.len());
        let value = format_args!("{offset}+{} of {}", bytes.len(), buffer.len_bytes());
        Error::require(is_inside, op, "range", "inside the buffer", value)?;
        let to = SendPtr(buffer.ptr().wrapping_add(offset));
        if Capture::of(self.core()).is_some() {
            let uses = [Use::write(buffer)];
            let constant = Constant { to, bytes: bytes.into() };
            return self.launch_described(op, &uses, &|_| Operand::whole(&uses), constant);
        }
        // SAFETY: the range is inside the buffer, the launch below orders the write, and the source is a slice, which
        // cannot overlap memory that only commands use.
        let copy = move |bytes: &[u8]| unsafe { to.copy_from(bytes) };
        let kind = CommandKind::Upload { bytes: bytes.len(), pinned: false };
        let uses = [Use::write(buffer)];
        self.owns(op, &uses)?;
        let mut command = self.ordered(op, &uses, Some(&Label::of(kind)), true)?;
        match command.place {
            RunsOn::Here => command.run(|| copy(bytes)),
            RunsOn::Worker => {
                let kept: Box<[u8]> = bytes.into();
                command.queue(Box::new(move |_| copy(&kept)), None);
            }
            RunsOn::Driver => {
                // SAFETY: the range is inside the buffer, and the command writes it.
                command.drive(|driver, moment| unsafe { driver.upload(to.0, bytes, moment) })?;
            }
        }
        command.launched();
        Ok(())
    }

    /// Copies the bytes `range` of `from` into `to` from byte `at` on, between this stream's CUDA device and another one or
    /// pinned host memory: `to` is this device's, or pinned. A command of this stream like any other: it comes after what
    /// wrote `from`, wherever that runs, and neither buffer is written or given to anybody else before it has run. The host
    /// waits for nothing; where devices cannot reach each other's memory, the driver takes the way through the host's.
    ///
    /// # Errors
    /// As for [`launch`](Self::launch); `CudaUnavailable` if the other buffer is neither, `DeviceMismatch` if
    /// `to` is another CUDA device's, `InvalidArgument` for a range that is not inside its buffer or if `from` is
    /// `to`.
    #[derive::located]
    pub fn copy_across(
        &self,
        op: &'static str,
        to: &Buffer,
        at: usize,
        from: &Buffer,
        range: Range<usize>,
    ) -> Result<()> {
        self.not_captured(op, "a copy between devices is not part of one device's step")?;
        let ours = self.core();
        self.fifo().driver()?;
        let is_ours = |buffer: &Buffer| Arc::ptr_eq(buffer.device().core(), ours);
        let other = if is_ours(to) { from } else { to };
        let theirs = other.device().core();
        let Some(context) = theirs.context() else {
            let reason = format!("{op} copies between {} and {}", self.device(), other.device());
            return Err(Error::no_cuda(reason));
        };
        if !is_ours(to) {
            // It would be written by another CUDA device than its own.
            theirs.cuda().map_or(Ok(()), |_| self.owns(op, &[Use::write(to)]))?;
            self.owns(op, &[Use::read(from)])?;
        }
        let bytes = range.len();
        let is_inside = to.has_range(at, bytes) && from.has_range(range.start, bytes);
        let value = format_args!("{range:?} of {} to {at} of {}", from.len_bytes(), to.len_bytes());
        Error::require(is_inside, op, "range", "inside the buffers", value)?;
        let (is_other, value) = (!std::ptr::eq(to, from), format_args!("{:p} twice", to.ptr()));
        Error::require(is_other, op, "from", "another buffer than the target", value)?;
        let uses = [Use::write(to), Use::read(from)];
        let kind = match theirs.cuda() {
            Some(_) => CommandKind::Across { bytes },
            None if is_ours(to) => CommandKind::Upload { bytes, pinned: true },
            None => CommandKind::Download { bytes },
        };
        let mut command = self.ordered(op, &uses, Some(&Label::of(kind)), false)?;
        let moment = command.moment();
        // Before it is given to the driver: the other device's memory outlives the copy.
        ours.borrow_until(moment, theirs, context);
        to.device().core().inherit_faults(moment, from.device().core());
        let (to_ptr, from_ptr) = (to.ptr().wrapping_add(at), from.ptr().wrapping_add(range.start));
        command.drive(|driver, _| {
            // SAFETY: both ranges are inside their buffers, which the command uses, and which are where `theirs` says.
            unsafe {
                match theirs.cuda() {
                    Some(_) => driver.copy_across(to_ptr, context, from_ptr, bytes),
                    None if is_ours(to) => driver.copy_from_pinned(to_ptr, from_ptr, bytes),
                    None => driver.copy_to_pinned(to_ptr, from_ptr, bytes),
                }
            }
        })?;
        command.launched();
        Ok(())
    }
}

/// An upload in a captured step: the bytes stay what they were.
struct Constant {
    to: SendPtr,
    bytes: Box<[u8]>,
}

impl Work for Constant {
    fn run(&self, _: &Cpu<'_>) {
        // SAFETY: `upload` checked the range, which the command writes.
        unsafe { self.to.copy_from(&self.bytes) }
    }

    fn enqueue(&self, queue: &Queue<'_>) -> Result<()> {
        // SAFETY: `upload` checked the range, which the command writes.
        unsafe { queue.constant(self.to.0, &self.bytes) }
    }

    fn bind(&mut self, binder: &mut dyn Binder) {
        self.to = SendPtr(binder.address(self.to.0));
    }
}
