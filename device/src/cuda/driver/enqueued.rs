//! What libraries enqueue, and enqueueing it again without them.
//!
//! For operands of one form a library always launches the same kernels with the same arguments, but for addresses. Its own call
//! takes the host two to three times as long as the launches, so it is captured once, with operands in three places, which
//! tells the arguments that are addresses from those that stay. From then on the kernels are launched with the addresses at
//! hand. What does not fit this (other nodes than kernels, blocks that wait for each other, arguments that are neither) is left
//! to the library.

pub(crate) mod nodes;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use super::ffi::sys;
use nodes::{CapturedKernel, CapturedNode};

use super::enqueue::{Call, Kernel, Words};
use super::graph::Graph;
use super::launcher::CommandId;
use super::stream::DriverStream;
use crate::{KernelRecord, Result};

/// The addresses that a library's call is given: operands, a bias, a workspace. Those that are null stay so for all operands of
/// a form.
pub type Addresses = [*mut u8; 5];

/// How far from where they lie a call's operands are captured again, in bytes. Each operand has its own, so that a difference
/// names it, some reach beyond 32 bits, and all keep the alignment of a form's operands, of which there are up to 16 bytes, and
/// that of workspaces. Nothing is read there.
const SHIFTS: [[u64; 5]; 2] = [
    [0x1_0010, 0x2_0030, 0x4_0050, 0x8_0070, 0x10_0100],
    [0x11_0000_0090, 0x23_0000_0110, 0x45_0000_0130, 0x87_0000_0170, 0x109_0000_0300],
];

/// What operands are a multiple of whose kernels are launched here: the most that a form tells apart.
const ALIGNMENT: usize = 16;

/// How often it is tried to find out what a call enqueues, where that fails.
const TRIES: u32 = 4;

/// What a library's call enqueues for operands of one form, once it was called.
#[derive(Default)]
pub struct Enqueued {
    found: OnceLock<Found>,
    failed: AtomicU32,
}

struct Found {
    kernels: Box<[KernelRecord]>,
    /// `None` if they are left to the library.
    launches: Option<Box<[Launch]>>,
}

/// A kernel and its arguments.
struct Launch {
    kernel: Kernel,
    words: Box<[u64]>,
    addresses: Box<[AddressWord]>,
}

/// A word that is an operand's address, plus an offset.
struct AddressWord {
    word: usize,
    operand: usize,
    offset: u64,
}

impl Enqueued {
    /// Enqueues as a part of a stream's command what `call` does with these operands, of the form that they always have here.
    ///
    /// # Safety
    /// The stream's context is current. `call` enqueues kernels for such operands that reach other memory by their addresses
    /// only, and the caller answers for the operands.
    pub(crate) unsafe fn enqueue(
        &self,
        stream: &DriverStream,
        command: CommandId,
        operands: &Addresses,
        call: impl Fn(&Addresses, sys::CUstream) -> Result<()>,
    ) -> Result<()> {
        let found = self.find(stream, command.0, operands, &call)?;
        let Some(launches) = found.and_then(|found| found.launches.as_deref()) else {
            return call(operands, stream.raw());
        };
        launches.iter().try_for_each(|launch| {
            // SAFETY: the caller's promise; the kernels are those that the library launches.
            unsafe { launch.enqueue(operands, stream, command) }
        })
    }

    /// The kernels of a call, if one was made and the driver tells them.
    pub(crate) fn kernels(&self) -> &[KernelRecord] {
        self.found.get().map_or(&[], |found| &found.kernels)
    }

    /// `None` if the driver does not tell.
    ///
    /// # Errors
    /// `StreamHeld`: the library loads its kernels when they are first used.
    fn find(
        &self,
        stream: &DriverStream,
        op: &'static str,
        operands: &Addresses,
        call: &impl Fn(&Addresses, sys::CUstream) -> Result<()>,
    ) -> Result<Option<&Found>> {
        if let Some(found) = self.found.get() {
            return Ok(Some(found));
        }
        if self.failed.load(Ordering::Relaxed) >= TRIES {
            return Ok(None);
        }
        let _quiet = stream.context.quiet(op)?;
        Ok(match find(stream, operands, call) {
            // Two threads that ask at once find the same.
            Ok(found) => Some(self.found.get_or_init(|| found)),
            // Next time it may succeed, as when there was no memory.
            Err(_) => {
                self.failed.fetch_add(1, Ordering::Relaxed);
                None
            }
        })
    }
}

/// What `call` enqueues.
fn find(
    stream: &DriverStream,
    operands: &Addresses,
    call: &impl Fn(&Addresses, sys::CUstream) -> Result<()>,
) -> Result<Found> {
    // A stream of its own: to wait for one that captures, or to look at it, ends the capture, and other threads may do that to
    // the one whose command it is.
    let scratch = stream.sibling()?;
    let nodes = |operands: &Addresses| {
        let graph = Graph(scratch.capture(|raw| call(operands, raw))?);
        CapturedNode::all(&graph)
    };
    let first = nodes(operands)?;
    let kernels = first.iter().filter_map(CapturedNode::record).collect::<Result<_>>()?;
    // Of addresses that are less aligned a form has several kinds, of which the places would be one.
    let aligned = operands.iter().all(|at| at.addr().is_multiple_of(ALIGNMENT));
    if !aligned {
        return Ok(Found { kernels, launches: None });
    }
    let launches = match SHIFTS.map(|shifts| nodes(&shifted(operands, &shifts))) {
        [Ok(second), Ok(third)] if second.len() == first.len() && third.len() == first.len() => {
            let launch = |i: usize| Launch::of([&first[i], &second[i], &third[i]], operands);
            (0..first.len()).map(launch).collect()
        }
        _ => None,
    };
    Ok(Found { kernels, launches })
}

/// The operands elsewhere.
fn shifted(operands: &Addresses, shifts: &[u64; 5]) -> Addresses {
    let mut there = *operands;
    for (at, shift) in there.iter_mut().zip(shifts).filter(|(at, _)| !at.is_null()) {
        *at = at.wrapping_add(*shift as usize);
    }
    there
}

impl Launch {
    /// A node of three captures, the first with `operands` and the others with them shifted, as a launch; `None` if it is none.
    fn of(nodes: [&CapturedNode; 3], operands: &Addresses) -> Option<Launch> {
        let [first, second, third] =
            nodes.map(|node| node.kernel.as_ref().filter(|kernel| node.is_next && kernel.is_plain));
        let (first, second, third) = (first?, second?, third?);
        let is_like =
            |other: &CapturedKernel| first.kernel == other.kernel && first.words.len() == other.words.len();
        if !is_like(second) || !is_like(third) {
            return None;
        }
        let mut addresses = Vec::new();
        for (word, &value) in first.words.iter().enumerate() {
            let by = [second, third].map(|other| other.words[word].wrapping_sub(value));
            if by == [0, 0] {
                continue;
            }
            let operand = (0..operands.len())
                .find(|&i| !operands[i].is_null() && by == SHIFTS.map(|shifts| shifts[i]))?;
            let offset = value.wrapping_sub(operands[operand].addr() as u64);
            addresses.push(AddressWord { word, operand, offset });
        }
        let (kernel, words) = (first.kernel.clone(), first.words.clone().into());
        Some(Launch { kernel, words, addresses: addresses.into() })
    }

    /// # Safety
    /// As for [`Enqueued::enqueue`].
    unsafe fn enqueue(&self, operands: &Addresses, stream: &DriverStream, command: CommandId) -> Result<()> {
        let mut words = Words::from_slice(&self.words);
        for &AddressWord { word, operand, offset } in &self.addresses {
            words[word] = (operands[operand].addr() as u64).wrapping_add(offset);
        }
        // SAFETY: the caller's promise; the function lives as long as the library.
        unsafe { stream.enqueue(Call::Kernel(self.kernel.clone()), &mut words, command) }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::ptr::null_mut;

    use smallvec::SmallVec;

    use super::*;
    use crate::cuda::Grid;
    use crate::cuda::driver::enqueue::{Arguments, Cluster};
    use crate::cuda::driver::module::Function;

    const HERE: [usize; 5] = [0x7F00_0000_1000, 0x7F00_0020_0010, 0x7F00_0020_0010, 0, 0x7F00_4000_0000];

    /// A node with these words as its first argument and a number as its second.
    fn node(words: &[u64]) -> CapturedNode {
        let (words, begins) = ([words, &[7]].concat(), [0, words.len() as u16]);
        let kernel = CapturedKernel {
            kernel: Kernel {
                function: Function(null_mut()),
                grid: Grid::linear(3, 64),
                cluster: Cluster::default(),
                arguments: Arguments::Listed(SmallVec::from_slice(&begins)),
            },
            name: "f".into(),
            is_plain: true,
            words,
        };
        CapturedNode { kernel: Some(kernel), is_next: true }
    }

    /// The launch that is found if a library makes such words of its operands' addresses.
    fn launch(words: impl Fn([u64; 5]) -> Vec<u64>) -> Option<Launch> {
        let here = HERE.map(|at| at as *mut u8);
        let node = |at: Addresses| node(&words(at.map(|at| at.addr() as u64)));
        let [second, third] = SHIFTS.map(|shifts| node(shifted(&here, &shifts)));
        Launch::of([&node(here), &second, &third], &here)
    }

    #[test]
    fn addresses_are_found_wherever_an_operand_lies() {
        let found =
            launch(|[a, b, c, bias, workspace]| vec![b, 5, a + 24, bias, c, workspace + 32, b]).unwrap();
        let addresses: Vec<_> = found.addresses.iter().map(|at| (at.word, at.operand, at.offset)).collect();
        // The second and the third operand lie in one place, and are two.
        assert_eq!(addresses, [(0, 1, 0), (2, 0, 24), (4, 2, 0), (5, 4, 32), (6, 1, 0)]);
        assert_eq!(
            (found.kernel.arguments, found.words[1], found.words[3]),
            (Arguments::Listed(SmallVec::from_slice(&[0, 7])), 5, 0)
        );
    }

    #[test]
    fn what_is_no_address_and_no_constant_is_left_to_the_library() {
        assert!(launch(|[a, ..]| vec![a]).is_some());
        assert!(launch(|[a, ..]| vec![a >> 4]).is_none());
        assert!(launch(|[a, ..]| vec![a & 0xFFFF_FFFF]).is_none());
        assert!(launch(|[a, b, ..]| vec![a.wrapping_add(b)]).is_none());
        assert!(launch(|[a, b, ..]| vec![a.wrapping_sub(b)]).is_none());
        // Whether a pointer is aligned to a page.
        assert!(launch(|[a, ..]| vec![u64::from(a % 4096 == 0)]).is_none());
        let [first, second] = [[1, 2], [1, 3]].map(|words| node(&words));
        assert!(Launch::of([&first, &first, &second], &[null_mut(); 5]).is_none());
        assert!(Launch::of([&first, &first, &first], &[null_mut(); 5]).is_some());
    }

    #[test]
    fn only_plain_kernels_in_a_row_are_launched() {
        let here = [null_mut(); 5];
        let changes: [fn(&mut CapturedNode); 7] = [
            |node| node.kernel = None,
            |node| node.is_next = false,
            |node| node.kernel.as_mut().unwrap().is_plain = false,
            |node| node.kernel.as_mut().unwrap().kernel.arguments = Arguments::Buffer(24),
            |node| node.kernel.as_mut().unwrap().kernel.grid.blocks[0] = 4,
            |node| node.kernel.as_mut().unwrap().kernel.cluster.size[0] = 2,
            |node| node.kernel.as_mut().unwrap().kernel.function = Function(std::ptr::dangling_mut()),
        ];
        for change in changes {
            let mut other = node(&[1, 2]);
            change(&mut other);
            assert!(Launch::of([&node(&[1, 2]), &node(&[1, 2]), &other], &here).is_none());
            assert!(Launch::of([&other, &node(&[1, 2]), &node(&[1, 2])], &here).is_none());
        }
    }

    /// Differences of two operands are never that of a third.
    #[test]
    fn shifts_tell_operands_apart() {
        for shifts in SHIFTS {
            for (i, shift) in shifts.into_iter().enumerate() {
                let aligned = if i == 4 { 256 } else { 16 };
                assert!(shift % aligned == 0 && shifts.iter().filter(|&&other| other == shift).count() == 1);
            }
        }
    }
}
