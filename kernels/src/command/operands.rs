//! Operands of commands: what is read and written, as it is stated, and as a command keeps it.
//!
//! On a CPU, operands of BF16 and F16 that were stated as F32 come widened, and are rounded when the body has ended. On
//! CUDA, where kernels convert what they load and store, each is the address of what is stored.

use std::marker::PhantomData;

use device::cuda::Arg;
use device::{DType, Element, Error, Result, Use};
use smallvec::SmallVec;

use crate::cpu::stage::{Operand, Stage};
use crate::layout::{Dst, Src, View};

/// The buffers of a command.
pub(crate) type Uses<'a> = SmallVec<[Use<'a>; 4]>;

/// What is known of a command while its operands are checked.
pub(crate) struct Check {
    op: &'static str,
    /// The type of storage of operands that are stated in the type that is computed in.
    dtype: Option<DType>,
    /// Elements of what is written.
    written: usize,
}

/// How a command uses an operand.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Access {
    pub(crate) write: bool,
    /// Whether the operand may be one that is written, element for element.
    in_place: bool,
    /// Index in a list of operands: an operand that is read in place may only be what is written at the same index.
    group: usize,
}

impl Access {
    const READ: Access = Access { write: false, in_place: false, group: 0 };
    const READ_IN_PLACE: Access = Access { in_place: true, ..Access::READ };
    const WRITE: Access = Access { write: true, ..Access::READ };
}

/// An operand and how it is used.
pub(super) type Used<'a> = (&'a View<'a>, Access);

/// Checks that no operand that is written shares memory with another operand, except one that is read in place. Parts of a command
/// run on several threads at once, so anything else would be a data race.
#[inline(always)]
pub(super) fn expect_apart(op: &'static str, used: &[Used<'_>]) -> Result<()> {
    if used.len() <= FEW { expect_pairs_apart(op, used) } else { expect_many_apart(op, used) }
}

/// Up to so many operands are compared pair by pair without sorting them.
const FEW: usize = 8;

fn expect_many_apart(op: &'static str, used: &[Used<'_>]) -> Result<()> {
    let mut used = used.to_vec();
    used.sort_unstable_by_key(|(view, _)| view.buffer.ptr());
    let mut shared = used.chunk_by(|(a, _), (b, _)| a.buffer.ptr() == b.buffer.ptr());
    shared.try_for_each(|used| expect_pairs_apart(op, used))
}

#[inline(always)]
fn expect_pairs_apart(op: &'static str, used: &[Used<'_>]) -> Result<()> {
    for (at, (view, access)) in used.iter().enumerate() {
        for (other, other_access) in &used[..at] {
            if view.buffer.ptr() == other.buffer.ptr() && (access.write || other_access.write) {
                let in_place =
                    access.group == other_access.group && (access.in_place || other_access.in_place);
                let (input, out) = if access.write { (other, view) } else { (view, other) };
                input.expect_apart(op, out, in_place)?;
            }
        }
    }
    Ok(())
}

/// Operands as they are stated: one, or several as a tuple, an array, a list, or an option.
pub(crate) trait Operands {
    /// What is left of them in a command.
    type Held: Held;

    /// Checks types, bounds, and that no two elements that are written lie at one place.
    fn check(&self, check: &mut Check) -> Result<()>;

    /// What a command keeps of them, once they are checked.
    fn hold(&self) -> Self::Held;

    /// Shows each, and how it is used.
    fn each<'a>(&'a self, show: &mut impl FnMut(&'a View<'a>, Access));
}

/// Operands in a command, which outlives their views: frees are ordered after it.
pub(crate) trait Held: Send + Sync + 'static {
    /// Whether an operand may be widened on a CPU.
    const STAGED: bool;
    /// The operands of the body for a CPU.
    type Cpu;
    /// The operands of the body for CUDA.
    type Cuda;

    /// # Safety
    /// This is the command that was launched with the operands' buffers.
    unsafe fn on_cpu<'s>(&'s self, stage: &Stage<'s>) -> Self::Cpu;

    fn on_cuda(&self) -> Self::Cuda;

    /// Gives each operand the address that `moved` gives for its own.
    fn bind(&mut self, moved: &mut dyn FnMut(*mut u8) -> *mut u8);
}

/// The address of an operand's first element, as kernels of a CUDA device and fused commands have it.
pub(crate) type Address = Dst<u8>;

impl Address {
    pub(crate) const NULL: Address = Dst(std::ptr::null_mut());

    /// The address of the element `elements` further, each of `size` bytes.
    #[inline]
    pub(crate) fn offset(self, elements: isize, size: usize) -> Address {
        Dst(self.at(elements * size as isize))
    }
}

impl From<Address> for Arg<'_> {
    fn from(at: Address) -> Self {
        Arg::Ptr(at.0)
    }
}

/// An operand that is read, as elements of type `T`.
pub(crate) struct Read<'a, T> {
    view: View<'a>,
    exact: bool,
    in_place: bool,
    marker: PhantomData<T>,
}

/// An operand that is written, as elements of type `T`.
pub(crate) struct Write<'a, T> {
    view: View<'a>,
    exact: bool,
    /// Whether the body reads what is there.
    keep: bool,
    marker: PhantomData<T>,
}

/// Bytes of an operand whose type the body looks at.
pub(crate) struct Raw<'a> {
    view: View<'a>,
    access: Access,
}

/// Bytes of operands of which the first is written and the others are read, in place.
pub(crate) struct WriteRead<'a, const N: usize>(pub(crate) [View<'a>; N]);

impl<const N: usize> Operands for WriteRead<'_, N> {
    type Held = [Dst<u8>; N];

    #[inline(always)]
    fn check(&self, check: &mut Check) -> Result<()> {
        self.0[1..].iter().try_for_each(|read| read.check_bounds(check.op))?;
        check.writes(&self.0[0])
    }

    #[inline(always)]
    fn hold(&self) -> [Dst<u8>; N] {
        self.0.each_ref().map(View::first)
    }

    #[inline(always)]
    fn each<'a>(&'a self, show: &mut impl FnMut(&'a View<'a>, Access)) {
        show(&self.0[0], Access::WRITE);
        self.0[1..].iter().for_each(|read| show(read, Access::READ_IN_PLACE));
    }
}

impl<'a> View<'a> {
    /// To be read as bytes.
    #[inline(always)]
    pub(crate) fn read_raw(self) -> Raw<'a> {
        Raw { view: self, access: Access::READ }
    }

    /// To be written as bytes.
    #[inline(always)]
    pub(crate) fn write_raw(self) -> Raw<'a> {
        Raw { view: self, access: Access::WRITE }
    }

    /// To be read in the type that is computed in.
    #[inline(always)]
    pub(crate) fn read<T>(self) -> Read<'a, T> {
        Read { view: self, exact: false, in_place: false, marker: PhantomData }
    }

    /// To be written in the type that is computed in: all elements, none of which is read.
    #[inline(always)]
    pub(crate) fn write<T>(self) -> Write<'a, T> {
        Write { view: self, exact: false, keep: false, marker: PhantomData }
    }

    /// Bytes for a command to work in, if `needed`: contiguous, and as many at least.
    pub(crate) fn workspace(
        op: &'static str,
        given: Option<View<'a>>,
        needed: usize,
    ) -> Result<Option<Write<'a, u8>>> {
        let given = given.filter(|_| needed > 0);
        given.map_or(Ok(()), |memory| memory.expect_contiguous(op, "workspace"))?;
        if given.map_or(0, |memory| memory.layout.elements()) < needed {
            let value = format_args!("fewer than {needed} bytes");
            return Err(Error::invalid(
                op,
                "workspace",
                "as large as the op's function for that says",
                value,
            ));
        }
        Ok(given.map(|memory| memory.write::<u8>().exact()))
    }
}

impl<T> Read<'_, T> {
    /// Of type `T` and no other, whatever the command computes in.
    #[inline(always)]
    pub(crate) fn exact(self) -> Self {
        Read { exact: true, ..self }
    }

    /// It may be what the command writes, element for element: each part of the command reads an element before it writes it, and
    /// reads none that another part writes.
    #[inline(always)]
    pub(crate) fn in_place(self) -> Self {
        Read { in_place: true, ..self }
    }
}

impl Raw<'_> {
    /// As [`Read::in_place`].
    pub(crate) fn in_place(self) -> Self {
        Raw { access: Access { in_place: true, ..self.access }, ..self }
    }
}

impl<T> Write<'_, T> {
    /// Of type `T` and no other, whatever the command computes in.
    #[inline(always)]
    pub(crate) fn exact(self) -> Self {
        Write { exact: true, ..self }
    }

    /// If `keep`, the elements may be read, and left as they are.
    #[inline(always)]
    pub(crate) fn keep(self, keep: bool) -> Self {
        Write { keep, ..self }
    }
}

impl Check {
    #[inline(always)]
    pub(super) fn of(op: &'static str) -> Check {
        Check { op, dtype: None, written: 0 }
    }

    /// Whether there is nothing to write.
    #[inline(always)]
    pub(super) fn is_all_read(&self) -> bool {
        self.written == 0
    }

    /// That the elements of a view that was stated as `T` can be computed with as such.
    #[inline(always)]
    fn storage<T: Element>(&mut self, view: &View<'_>, exact: bool) -> Result<()> {
        let expected = if exact { T::DTYPE } else { *self.dtype.get_or_insert(view.dtype) };
        view.expect_dtype(self.op, expected)?;
        if expected.compute_dtype() == T::DTYPE {
            Ok(())
        } else {
            Err(Error::dtype_unsupported(self.op, expected))
        }
    }

    #[inline(always)]
    fn writes(&mut self, view: &View<'_>) -> Result<()> {
        self.written += view.layout.elements();
        view.check_bounds(self.op)?;
        view.check_written_once(self.op)
    }
}

/// An operand of a body that reads.
pub(crate) struct HeldRead<T>(Operand<T>);

impl<T: Element> Operands for Read<'_, T> {
    type Held = HeldRead<T>;

    #[inline(always)]
    fn check(&self, check: &mut Check) -> Result<()> {
        check.storage::<T>(&self.view, self.exact)?;
        self.view.check_bounds(check.op)
    }

    #[inline(always)]
    fn hold(&self) -> HeldRead<T> {
        HeldRead(Operand::of(&self.view))
    }

    #[inline(always)]
    fn each<'a>(&'a self, show: &mut impl FnMut(&'a View<'a>, Access)) {
        show(&self.view, Access { in_place: self.in_place, ..Access::READ });
    }
}

impl<T: Element> Held for HeldRead<T> {
    const STAGED: bool = true;
    type Cpu = Src<T>;
    type Cuda = Address;

    #[inline(always)]
    unsafe fn on_cpu<'s>(&'s self, stage: &Stage<'s>) -> Src<T> {
        // SAFETY: the caller promises that this command uses the operand's buffer. The body ends before the stage.
        unsafe { stage.read(&self.0) }
    }

    #[inline(always)]
    fn on_cuda(&self) -> Address {
        self.0.at()
    }

    fn bind(&mut self, moved: &mut dyn FnMut(*mut u8) -> *mut u8) {
        self.0.bind(moved);
    }
}

/// An operand of a body that writes.
pub(crate) struct HeldWrite<T> {
    operand: Operand<T>,
    keep: bool,
}

impl<T: Element> Operands for Write<'_, T> {
    type Held = HeldWrite<T>;

    #[inline(always)]
    fn check(&self, check: &mut Check) -> Result<()> {
        check.storage::<T>(&self.view, self.exact)?;
        check.writes(&self.view)
    }

    #[inline(always)]
    fn hold(&self) -> HeldWrite<T> {
        HeldWrite { operand: Operand::of(&self.view), keep: self.keep }
    }

    #[inline(always)]
    fn each<'a>(&'a self, show: &mut impl FnMut(&'a View<'a>, Access)) {
        show(&self.view, Access::WRITE);
    }
}

impl<T: Element> Held for HeldWrite<T> {
    const STAGED: bool = true;
    type Cpu = Dst<T>;
    type Cuda = Address;

    #[inline(always)]
    unsafe fn on_cpu<'s>(&'s self, stage: &Stage<'s>) -> Dst<T> {
        // SAFETY: the caller promises that this command uses the operand's buffer. The body ends before the stage.
        unsafe { if self.keep { stage.update(&self.operand) } else { stage.write(&self.operand) } }
    }

    #[inline(always)]
    fn on_cuda(&self) -> Address {
        self.operand.at()
    }

    fn bind(&mut self, moved: &mut dyn FnMut(*mut u8) -> *mut u8) {
        self.operand.bind(moved);
    }
}

impl Operands for Raw<'_> {
    type Held = Dst<u8>;

    #[inline(always)]
    fn check(&self, check: &mut Check) -> Result<()> {
        if self.access.write { check.writes(&self.view) } else { self.view.check_bounds(check.op) }
    }

    #[inline(always)]
    fn hold(&self) -> Dst<u8> {
        self.view.first()
    }

    #[inline(always)]
    fn each<'a>(&'a self, show: &mut impl FnMut(&'a View<'a>, Access)) {
        show(&self.view, self.access);
    }
}

impl Held for Dst<u8> {
    const STAGED: bool = false;
    type Cpu = Dst<u8>;
    type Cuda = Address;

    #[inline(always)]
    unsafe fn on_cpu<'s>(&'s self, _: &Stage<'s>) -> Dst<u8> {
        *self
    }

    #[inline(always)]
    fn on_cuda(&self) -> Address {
        *self
    }

    fn bind(&mut self, moved: &mut dyn FnMut(*mut u8) -> *mut u8) {
        self.0 = moved(self.0);
    }
}

/// Several operands of one kind: a list type by its macro, and the method that borrows each element.
macro_rules! list {
    ($list:ident, $each:ident $(, const $N:ident)?) => {
        impl<O: Operands $(, const $N: usize)?> Operands for $list!(O) {
            type Held = $list!(O::Held);

            #[inline(always)]
            fn check(&self, check: &mut Check) -> Result<()> {
                self.iter().try_for_each(|operand| operand.check(check))
            }

            #[inline(always)]
            fn hold(&self) -> Self::Held {
                self.$each().map(O::hold)
            }

            #[inline(always)]
            fn each<'a>(&'a self, show: &mut impl FnMut(&'a View<'a>, Access)) {
                self.iter().for_each(|operand| operand.each(show));
            }
        }

        impl<H: Held $(, const $N: usize)?> Held for $list!(H) {
            const STAGED: bool = H::STAGED;
            type Cpu = $list!(H::Cpu);
            type Cuda = $list!(H::Cuda);

            #[inline(always)]
            unsafe fn on_cpu<'s>(&'s self, stage: &Stage<'s>) -> Self::Cpu {
                // SAFETY: each operand is the command's, as the caller promises of all.
                self.$each().map(|held| unsafe { held.on_cpu(stage) })
            }

            #[inline(always)]
            fn on_cuda(&self) -> Self::Cuda {
                self.$each().map(H::on_cuda)
            }

            fn bind(&mut self, moved: &mut dyn FnMut(*mut u8) -> *mut u8) {
                self.iter_mut().for_each(|held| held.bind(moved));
            }
        }
    };
}

macro_rules! option {
    ($of:ty) => { Option<$of> };
}

macro_rules! array {
    ($of:ty) => {
        [$of; N]
    };
}

list!(option, as_ref);
list!(array, each_ref, const N);

impl<O: Operands> Operands for Vec<O> {
    type Held = Vec<O::Held>;

    fn check(&self, check: &mut Check) -> Result<()> {
        self.iter().try_for_each(|operand| operand.check(check))
    }

    fn hold(&self) -> Self::Held {
        self.iter().map(O::hold).collect()
    }

    fn each<'a>(&'a self, show: &mut impl FnMut(&'a View<'a>, Access)) {
        for (group, operand) in self.iter().enumerate() {
            operand.each(&mut |view, access| show(view, Access { group, ..access }));
        }
    }
}

impl<H: Held> Held for Vec<H> {
    const STAGED: bool = H::STAGED;
    type Cpu = Vec<H::Cpu>;
    type Cuda = Vec<H::Cuda>;

    unsafe fn on_cpu<'s>(&'s self, stage: &Stage<'s>) -> Self::Cpu {
        // SAFETY: the caller's promise is about the buffers of all operands of the command, which include these.
        self.iter().map(|held| unsafe { held.on_cpu(stage) }).collect()
    }

    fn on_cuda(&self) -> Self::Cuda {
        self.iter().map(H::on_cuda).collect()
    }

    fn bind(&mut self, moved: &mut dyn FnMut(*mut u8) -> *mut u8) {
        self.iter_mut().for_each(|held| held.bind(moved));
    }
}

/// Operands next to each other: a tuple, whose length no function can be generic over.
macro_rules! tuple {
    ($($name:ident $at:tt),+) => {
        impl<$($name: Operands),+> Operands for ($($name,)+) {
            type Held = ($($name::Held,)+);

            #[inline(always)]
            fn check(&self, check: &mut Check) -> Result<()> {
                $(self.$at.check(check)?;)+
                Ok(())
            }

            #[inline(always)]
            fn hold(&self) -> Self::Held {
                ($(self.$at.hold(),)+)
            }

            #[inline(always)]
            fn each<'a>(&'a self, show: &mut impl FnMut(&'a View<'a>, Access)) {
                $(self.$at.each(show);)+
            }
        }

        impl<$($name: Held),+> Held for ($($name,)+) {
            const STAGED: bool = $($name::STAGED)||+;
            type Cpu = ($($name::Cpu,)+);
            type Cuda = ($($name::Cuda,)+);

            #[inline(always)]
            unsafe fn on_cpu<'s>(&'s self, stage: &Stage<'s>) -> Self::Cpu {
                // SAFETY: the caller's promise is about the buffers of all operands of the command, which include
                // these.
                unsafe { ($(self.$at.on_cpu(stage),)+) }
            }

            #[inline(always)]
            fn on_cuda(&self) -> Self::Cuda {
                ($(self.$at.on_cuda(),)+)
            }

            fn bind(&mut self, moved: &mut dyn FnMut(*mut u8) -> *mut u8) {
                $(self.$at.bind(moved);)+
            }
        }
    };
}

tuple!(A 0);
tuple!(A 0, B 1);
tuple!(A 0, B 1, C 2);
tuple!(A 0, B 1, C 2, D 3);
tuple!(A 0, B 1, C 2, D 3, E 4);
tuple!(A 0, B 1, C 2, D 3, E 4, F 5);
tuple!(A 0, B 1, C 2, D 3, E 4, F 5, G 6);
tuple!(A 0, B 1, C 2, D 3, E 4, F 5, G 6, H 7);
