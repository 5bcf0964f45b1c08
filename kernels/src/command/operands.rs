//! Operands of commands: what is read and written, as it is stated, and as a command keeps it.
//!
//! On a CPU, operands of BF16 and F16 that were stated as F32 come widened, and are rounded when the body has ended. On
//! CUDA, where kernels convert what they load and store, each is the address of what is stored.

use std::array::from_fn;
use std::marker::PhantomData;

use device::cuda::Arg;
use device::{DType, Element, Error, Result, Use};
use smallvec::SmallVec;

use crate::cpu::inlined;
use crate::cpu::stage::{Operand, Stage};
use crate::layout::{Dst, Src, View};

/// The buffers of a command.
pub(crate) type Uses<'a> = SmallVec<[Use<'a>; 4]>;

/// How a command uses an operand.
#[derive(Clone, Copy)]
pub(crate) struct Access {
    pub(crate) write: bool,
    /// Whether what is written means nothing afterwards.
    pub(crate) is_workspace: bool,
    storage: Storage,
    /// Whether the operand may be one that is written, element for element.
    in_place: bool,
    /// Index in a list of operands: an operand that is read in place may only be what is written at the same index.
    group: u32,
}

/// In which type an operand must be stored.
#[derive(Clone, Copy)]
enum Storage {
    Any,
    /// This type.
    Exactly(DType),
    /// One that is computed in this type, and the one of all such operands.
    ComputedIn(DType),
}

impl Access {
    const READ: Access =
        Access { write: false, is_workspace: false, storage: Storage::Any, in_place: false, group: 0 };
    const READ_IN_PLACE: Access = Access { in_place: true, ..Access::READ };
    const WRITE: Access = Access { write: true, ..Access::READ };
}

/// An operand and how it is used.
pub(super) type Used<'a> = (&'a View<'a>, Access);

/// Checks types, bounds and overlaps of operands, and lists them; `None` if no element is written. The operands stated in
/// a type that is computed in are stored in one type, that of the first.
///
/// Checks and list are two passes: the compiler unrolls both, and knows the length of a list that is made without branches.
#[inline(always)]
pub(super) fn check<'a>(
    op: &'static str,
    operands: &'a impl Operands,
) -> Result<Option<SmallVec<[Used<'a>; 4]>>> {
    let (mut stored, mut is_written) = (None, false);
    operands.each(&mut inlined!(|view: &View<'_>, access: Access| {
        match access.storage {
            Storage::Any => {}
            Storage::Exactly(dtype) => view.expect_dtype(op, dtype)?,
            Storage::ComputedIn(dtype) => {
                view.expect_dtype(op, *stored.get_or_insert(view.dtype))?;
                if view.dtype.compute_dtype() != dtype {
                    return Err(Error::dtype_unsupported(op, view.dtype, dtype.name()));
                }
            }
        }
        view.check_bounds(op)?;
        if access.write {
            is_written |= view.layout.elements() > 0;
            view.check_written_once(op)?;
        }
        Ok(())
    }))?;
    if !is_written {
        return Ok(None);
    }
    let mut used: SmallVec<[Used<'a>; 4]> = SmallVec::new();
    operands.each(&mut inlined!(|view: &'a View<'a>, access: Access| {
        used.push((view, access));
        Ok(())
    }))?;
    expect_apart(op, &used)?;
    Ok(Some(used))
}

/// Checks that no operand that is written shares memory with another operand, except one that is read in place. Parts of a command
/// run on several threads at once, so anything else would be a data race.
#[inline(always)]
fn expect_apart(op: &'static str, used: &[Used<'_>]) -> Result<()> {
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

    /// What a command keeps of them, once they are checked.
    fn hold(&self) -> Self::Held;

    /// Shows each, and how it is used, until `show` fails.
    fn each<'a>(&'a self, show: &mut impl FnMut(&'a View<'a>, Access) -> Result<()>) -> Result<()>;
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

/// Bytes of an operand whose type the body looks at.
pub(crate) struct Raw;

/// What the elements of an operand are stated as: a type that is computed in, or [`Raw`].
pub(crate) trait Computed: 'static {
    const DTYPE: Option<DType>;
    /// What a body for a CPU sees.
    type Element: 'static;
}

impl<T: Element> Computed for T {
    const DTYPE: Option<DType> = Some(T::DTYPE);
    type Element = T;
}

impl Computed for Raw {
    const DTYPE: Option<DType> = None;
    type Element = u8;
}

/// An address, [`Src`] or [`Dst`], of elements that are stated as `T`.
pub(crate) trait Pointer: Send + Sync + 'static {
    const WRITE: bool;
    type Target: Computed;
    /// The address that a body for a CPU gets.
    type Body;
    fn body(at: Dst<u8>) -> Self::Body;
}

impl<T: Computed> Pointer for Src<T> {
    const WRITE: bool = false;
    type Target = T;
    type Body = Src<T::Element>;

    #[inline(always)]
    fn body(at: Dst<u8>) -> Self::Body {
        at.cast().src()
    }
}

impl<T: Computed> Pointer for Dst<T> {
    const WRITE: bool = true;
    type Target = T;
    type Body = Dst<T::Element>;

    #[inline(always)]
    fn body(at: Dst<u8>) -> Self::Body {
        at.cast()
    }
}

/// An operand that the body for a CPU gets as the address `P`.
pub(crate) struct Stated<'a, P> {
    view: View<'a>,
    exact: bool,
    in_place: bool,
    keep: bool,
    is_workspace: bool,
    marker: PhantomData<P>,
}

/// An operand that is read, as elements of type `T`.
pub(crate) type Read<'a, T> = Stated<'a, Src<T>>;

/// An operand that is written, as elements of type `T`.
pub(crate) type Write<'a, T> = Stated<'a, Dst<T>>;

impl<'a> View<'a> {
    #[inline(always)]
    fn stated<P: Pointer>(self) -> Stated<'a, P> {
        Stated {
            view: self,
            exact: false,
            in_place: false,
            keep: false,
            is_workspace: false,
            marker: PhantomData,
        }
    }

    /// To be read in the type that is computed in.
    #[inline(always)]
    pub(crate) fn read<T: Computed>(self) -> Read<'a, T> {
        self.stated()
    }

    /// To be written in the type that is computed in: all elements, none of which is read.
    #[inline(always)]
    pub(crate) fn write<T: Computed>(self) -> Write<'a, T> {
        self.stated()
    }

    /// Memory for a command to work in, if `needed`: contiguous, and so many elements at least.
    pub(crate) fn workspace<T: Computed>(
        op: &'static str,
        given: Option<View<'a>>,
        needed: usize,
    ) -> Result<Option<Write<'a, T>>> {
        let given = given.filter(|_| needed > 0);
        given.map_or(Ok(()), |memory| memory.expect_contiguous(op, "workspace"))?;
        let is_large = given.map_or(0, |memory| memory.layout.elements()) >= needed;
        let value = format_args!("fewer than {needed} elements");
        Error::require(is_large, op, "workspace", "as large as the op says that it needs", value)?;
        let offset = given.map_or(0, |memory| memory.layout.offset() * memory.dtype.size_bytes());
        let value = format_args!("at byte {offset} of its buffer");
        Error::require(offset.is_multiple_of(16), op, "workspace", "at a multiple of 16 bytes", value)?;
        Ok(given.map(|memory| Stated { is_workspace: true, ..memory.write::<T>().exact() }))
    }
}

impl<P> Stated<'_, P> {
    /// Of the stated type and no other, whatever the command computes in.
    #[inline(always)]
    pub(crate) fn exact(self) -> Self {
        self.exact_if(true)
    }

    #[inline(always)]
    pub(crate) fn exact_if(self, exact: bool) -> Self {
        Stated { exact, ..self }
    }

    /// It may be what the command writes, element for element: each part of the command reads an element before it writes it, and
    /// reads none that another part writes.
    #[inline(always)]
    pub(crate) fn in_place(self) -> Self {
        Stated { in_place: true, ..self }
    }

    /// If `keep`, the elements may be read, and left as they are.
    #[inline(always)]
    pub(crate) fn keep(self, keep: bool) -> Self {
        Stated { keep, ..self }
    }
}

/// An operand in a command.
pub(crate) struct HeldOperand<P> {
    operand: Operand,
    keep: bool,
    marker: PhantomData<P>,
}

impl<P: Pointer> Operands for Stated<'_, P> {
    type Held = HeldOperand<P>;

    #[inline(always)]
    fn hold(&self) -> HeldOperand<P> {
        let operand = Operand::of(&self.view, P::Target::DTYPE.is_some());
        HeldOperand { operand, keep: self.keep, marker: PhantomData }
    }

    #[inline(always)]
    fn each<'a>(&'a self, show: &mut impl FnMut(&'a View<'a>, Access) -> Result<()>) -> Result<()> {
        let storage = match P::Target::DTYPE {
            None => Storage::Any,
            Some(dtype) if self.exact => Storage::Exactly(dtype),
            Some(dtype) => Storage::ComputedIn(dtype),
        };
        let Stated { is_workspace, in_place, .. } = *self;
        show(&self.view, Access { write: P::WRITE, is_workspace, storage, in_place, group: 0 })
    }
}

impl<P: Pointer> Held for HeldOperand<P> {
    const STAGED: bool = P::Target::DTYPE.is_some();
    type Cpu = P::Body;
    type Cuda = Address;

    #[inline(always)]
    unsafe fn on_cpu<'s>(&'s self, stage: &Stage<'s>) -> P::Body {
        // SAFETY: the caller promises that this command uses the operand's buffer. The body ends before the stage.
        P::body(unsafe { stage.hold(&self.operand, !P::WRITE || self.keep, P::WRITE) })
    }

    #[inline(always)]
    fn on_cuda(&self) -> Address {
        self.operand.at()
    }

    fn bind(&mut self, moved: &mut dyn FnMut(*mut u8) -> *mut u8) {
        self.operand.bind(moved);
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

/// Bytes of operands of which the first is written and the others are read, in place.
pub(crate) struct WriteRead<'a, const N: usize>(pub(crate) [View<'a>; N]);

impl<const N: usize> Operands for WriteRead<'_, N> {
    type Held = [Dst<u8>; N];

    #[inline(always)]
    fn hold(&self) -> [Dst<u8>; N] {
        from_fn(|k| self.0[k].first())
    }

    #[inline(always)]
    fn each<'a>(&'a self, show: &mut impl FnMut(&'a View<'a>, Access) -> Result<()>) -> Result<()> {
        show(&self.0[0], Access::WRITE)?;
        self.0[1..].iter().try_for_each(|read| show(read, Access::READ_IN_PLACE))
    }
}

/// Several operands of one kind: the list's type by its macro, how a function is applied to the elements of a borrowed list, and the
/// group of the element at an index.
macro_rules! list {
    ($list:ident, |$all:ident, $f:ident| $mapped:expr, |$access:ident, $index:ident| $group:expr $(, const $N:ident)?) => {
        impl<O: Operands $(, const $N: usize)?> Operands for $list!(O) {
            type Held = $list!(O::Held);

            #[inline(always)]
            fn hold(&self) -> Self::Held {
                let ($all, $f) = (self, O::hold);
                $mapped
            }

            #[inline(always)]
            fn each<'a>(&'a self, show: &mut impl FnMut(&'a View<'a>, Access) -> Result<()>) -> Result<()> {
                self.iter().enumerate().try_for_each(|($index, operand)| {
                    operand.each(&mut inlined!(|view, $access: Access| {
                        show(view, Access { group: $group, ..$access })
                    }))
                })
            }
        }

        impl<H: Held $(, const $N: usize)?> Held for $list!(H) {
            const STAGED: bool = H::STAGED;
            type Cpu = $list!(H::Cpu);
            type Cuda = $list!(H::Cuda);

            #[inline(always)]
            unsafe fn on_cpu<'s>(&'s self, stage: &Stage<'s>) -> Self::Cpu {
                // SAFETY: each operand is the command's, as the caller promises of all.
                let ($all, $f) = (self, |held: &'s H| unsafe { held.on_cpu(stage) });
                $mapped
            }

            #[inline(always)]
            fn on_cuda(&self) -> Self::Cuda {
                let ($all, $f) = (self, H::on_cuda);
                $mapped
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

macro_rules! vec_of {
    ($of:ty) => { Vec<$of> };
}

list!(option, |all, f| all.as_ref().map(f), |access, _index| access.group);
list!(array, |all, f| from_fn(|k| f(&all[k])), |access, _index| access.group, const N);
list!(vec_of, |all, f| all.iter().map(f).collect(), |access, index| index as u32);

/// Operands next to each other: a tuple, whose length no function can be generic over.
macro_rules! tuple {
    ($($name:ident $at:tt),+) => {
        impl<$($name: Operands),+> Operands for ($($name,)+) {
            type Held = ($($name::Held,)+);

            #[inline(always)]
            fn hold(&self) -> Self::Held {
                ($(self.$at.hold(),)+)
            }

            #[inline(always)]
            fn each<'a>(&'a self, show: &mut impl FnMut(&'a View<'a>, Access) -> Result<()>) -> Result<()> {
                $(self.$at.each(show)?;)+
                Ok(())
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
