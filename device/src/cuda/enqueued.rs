//! What libraries enqueue.

use std::ffi::CStr;
use std::sync::OnceLock;

use cudarc::driver::sys;

use super::Grid;
use super::call::check;
use super::graph::Graph;
use super::module::Function;
use super::stream::DriverStream;
use crate::{KernelRecord, Result};

/// The kernels that a library's call enqueues for operands of one form, once they were asked for.
#[derive(Default)]
pub(super) struct Enqueued(OnceLock<Box<[KernelRecord]>>);

impl Enqueued {
    /// The kernels of what `enqueue` puts on the stream that it is given, of the same device as `stream`, where nothing runs.
    /// It is called until they are known. None if the driver does not tell.
    pub(super) fn kernels(
        &self,
        stream: &DriverStream,
        enqueue: impl FnOnce(sys::CUstream) -> Result<()>,
    ) -> Box<[KernelRecord]> {
        if let Some(known) = self.0.get() {
            return known.clone();
        }
        // A stream of its own: to wait for one that captures, or to look at it, ends the capture, and other threads may do that
        // to the one whose command it is.
        let find = || stream.sibling()?.capture(enqueue).and_then(|graph| kernels_of(&Graph(graph)));
        // Next time it may succeed, as when there was no memory. Two threads that ask at once find the same.
        find().map(|found| self.0.get_or_init(|| found).clone()).unwrap_or_default()
    }
}

/// The kernels among a graph's nodes.
fn kernels_of(graph: &Graph) -> Result<Box<[KernelRecord]>> {
    let mut count = 0;
    // SAFETY: the graph is live, and nobody changes it. The driver writes how many nodes it has.
    unsafe { check("cuGraphGetNodes", sys::cuGraphGetNodes(graph.0, std::ptr::null_mut(), &mut count))? };
    let mut nodes = vec![std::ptr::null_mut(); count];
    // SAFETY: as above. The driver writes as many handles as it is told there is room for.
    unsafe { check("cuGraphGetNodes", sys::cuGraphGetNodes(graph.0, nodes.as_mut_ptr(), &mut count))? };
    // SAFETY: the nodes are live while the graph is.
    nodes.into_iter().filter_map(|node| unsafe { kernel(node) }.transpose()).collect()
}

/// What a node runs, if that is a kernel.
///
/// # Safety
/// The node is live.
unsafe fn kernel(node: sys::CUgraphNode) -> Result<Option<KernelRecord>> {
    // A number: later drivers may have kinds that the enum has not.
    let mut kind = 0_u32;
    // SAFETY: the node is live; the driver writes a number of 32 bits.
    unsafe { check("cuGraphNodeGetType", sys::cuGraphNodeGetType(node, (&raw mut kind).cast()))? };
    if kind != sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_KERNEL as u32 {
        return Ok(None);
    }
    // SAFETY: numbers and addresses, all of which may be 0.
    let mut params: sys::CUDA_KERNEL_NODE_PARAMS = unsafe { std::mem::zeroed() };
    // SAFETY: the node is live and a kernel's; the driver fills the struct.
    let code = unsafe { sys::cuGraphKernelNodeGetParams_v2(node, &mut params) };
    check("cuGraphKernelNodeGetParams", code)?;
    if params.func.is_null() {
        // SAFETY: a node without a function has a kernel, which is loaded since it was enqueued; the driver writes a handle.
        let code = unsafe { sys::cuKernelGetFunction(&mut params.func, params.kern) };
        check("cuKernelGetFunction", code)?;
    }
    let mut name = std::ptr::null();
    // SAFETY: the function is live: a library unloads none while its handle is. The driver writes the address of its name.
    unsafe { check("cuFuncGetName", sys::cuFuncGetName(&mut name, params.func))? };
    // SAFETY: the name ends with 0, and is there while the function is.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
    let grid = Grid {
        blocks: [params.gridDimX, params.gridDimY, params.gridDimZ],
        threads: [params.blockDimX, params.blockDimY, params.blockDimZ],
        shared_bytes: params.sharedMemBytes,
    };
    Function(params.func).describe(&name, grid).map(Some)
}
