//! Kernels as a captured graph shows them.

use std::ffi::{CStr, c_void};
use std::ptr::null_mut;

use crate::cuda::driver::ffi::sys;
use smallvec::SmallVec;

use crate::cuda::Grid;
use crate::cuda::driver::call::{call, check};
use crate::cuda::driver::enqueue::{Arguments, Cluster, END, Kernel, POINTER, SIZE, append};
use crate::cuda::driver::graph::Graph;
use crate::cuda::driver::module::Function;
use crate::{KernelRecord, Result, foreign};

/// A node of a graph that was captured.
pub(super) struct CapturedNode {
    /// What it runs, if that is a kernel.
    pub(super) kernel: Option<CapturedKernel>,
    /// Whether it comes after the node before it and after nothing else.
    pub(super) is_next: bool,
}

/// A node's kernel.
pub(super) struct CapturedKernel {
    pub(super) kernel: Kernel,
    pub(super) name: Box<str>,
    /// Whether the kernel and its arguments are all that a launch has to say.
    pub(super) is_plain: bool,
    /// All arguments.
    pub(super) words: Vec<u64>,
}

impl CapturedNode {
    /// All of a graph's, in the order in which they were captured.
    pub(super) fn all(graph: &Graph) -> Result<Vec<CapturedNode>> {
        let mut count = 0;
        // SAFETY: the graph is live, and nobody changes it. The driver writes how many nodes it has.
        unsafe { call!(cuGraphGetNodes(graph.0, null_mut(), &mut count))? };
        let mut nodes = vec![null_mut(); count];
        // SAFETY: nothing adds nodes to the graph meanwhile, and the driver writes at most the `count` handles that there is room for.
        unsafe { call!(cuGraphGetNodes(graph.0, nodes.as_mut_ptr(), &mut count))? };
        let edges = edges(graph)?;
        let is_next = |i: usize| {
            let mut before = edges.iter().filter(|edge| edge.1 == nodes[i]).map(|edge| edge.0);
            before.next() == i.checked_sub(1).map(|before| nodes[before]) && before.next().is_none()
        };
        let node = |i| {
            // SAFETY: the nodes are live while the graph is.
            let kernel = unsafe { CapturedKernel::of(nodes[i])? };
            Ok(CapturedNode { kernel, is_next: is_next(i) })
        };
        (0..nodes.len()).map(node).collect()
    }

    /// What a recording says of it, if it is a kernel.
    pub(super) fn record(&self) -> Option<Result<KernelRecord>> {
        self.kernel.as_ref().map(|node| node.kernel.function.describe(&node.name, node.kernel.grid))
    }
}

/// From which node to which.
fn edges(graph: &Graph) -> Result<Vec<(sys::CUgraphNode, sys::CUgraphNode)>> {
    let mut count = 0;
    // SAFETY: the graph is live, and nobody changes it. The driver writes how many edges it has.
    unsafe { call!(cuGraphGetEdges_v2(graph.0, null_mut(), null_mut(), null_mut(), &mut count)) }?;
    if count == 0 {
        return Ok(Vec::new());
    }
    let (mut from, mut to) = (vec![null_mut(); count], vec![null_mut(); count]);
    // SAFETY: numbers, all of which may be 0.
    let mut kinds: Vec<sys::CUgraphEdgeData> = vec![unsafe { std::mem::zeroed() }; count];
    // SAFETY: nothing adds edges to the graph meanwhile, and the driver writes at most the `count` that each list has room for.
    unsafe {
        call!(cuGraphGetEdges_v2(graph.0, from.as_mut_ptr(), to.as_mut_ptr(), kinds.as_mut_ptr(), &mut count))
    }?;
    Ok(from.into_iter().zip(to).collect())
}

impl CapturedKernel {
    /// What a node runs, if that is a kernel.
    ///
    /// # Safety
    /// The node is live.
    unsafe fn of(node: sys::CUgraphNode) -> Result<Option<CapturedKernel>> {
        let mut kind = 0u32;
        // SAFETY: the node is live; the driver writes a number.
        unsafe { call!(cuGraphNodeGetType(node, (&raw mut kind).cast()))? };
        if kind != sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_KERNEL as u32 {
            return Ok(None);
        }
        // SAFETY: numbers and addresses, all of which may be 0.
        let mut params: sys::CUDA_KERNEL_NODE_PARAMS = unsafe { std::mem::zeroed() };
        // SAFETY: the node is live and a kernel's; the driver fills the struct.
        unsafe { call!(cuGraphKernelNodeGetParams_v2(node, &mut params)) }?;
        if params.func.is_null() {
            // SAFETY: a node without a function has a kernel, which is loaded since it was enqueued; the driver writes a handle.
            unsafe { call!(cuKernelGetFunction(&mut params.func, params.kern)) }?;
        }
        let mut name = std::ptr::null();
        // SAFETY: the function is live: a library unloads none while its handle is. The driver writes the address of its name.
        unsafe { call!(cuFuncGetName(&mut name, params.func))? };
        // SAFETY: the name ends with 0, and is there while the function is.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into();
        let grid = Grid {
            blocks: [params.gridDimX, params.gridDimY, params.gridDimZ],
            threads: [params.blockDimX, params.blockDimY, params.blockDimZ],
            shared_bytes: params.sharedMemBytes,
        };
        // SAFETY: the node is live and a kernel's, and the driver has told what it is launched with.
        let (cluster, (arguments, words)) = unsafe { (Cluster::of(node)?, arguments(&params)?) };
        // SAFETY: the node is live and a kernel's, as its type says.
        let waits = unsafe { attribute(node, Attribute::CU_LAUNCH_ATTRIBUTE_COOPERATIVE)?.cooperative != 0 };
        let is_plain = arguments.is_some() && !waits;
        let arguments = arguments.unwrap_or(Arguments::Buffer(0));
        let kernel = Kernel { function: Function(params.func), grid, cluster, arguments };
        Ok(Some(CapturedKernel { kernel, name, is_plain, words }))
    }
}

/// The arguments of a node's kernel, if there is a list of them or a buffer.
///
/// # Safety
/// The node is live.
unsafe fn arguments(params: &sys::CUDA_KERNEL_NODE_PARAMS) -> Result<(Option<Arguments>, Vec<u64>)> {
    // SAFETY: the caller's promise; a list has what the function takes, and what is extra says its length.
    unsafe {
        if !params.kernelParams.is_null() {
            let (begins, words) = listed(params)?;
            return Ok((Some(Arguments::Listed(begins)), words));
        }
        Ok(match buffer(params.extra) {
            Some((from, bytes)) => {
                let mut words = Vec::new();
                append(&mut words, std::slice::from_raw_parts(from.cast::<u8>(), bytes));
                (Some(Arguments::Buffer(bytes)), words)
            }
            None => (None, Vec::new()),
        })
    }
}

/// The arguments in a node's list, and where each begins.
///
/// # Safety
/// The node is live, and there is a list.
unsafe fn listed(params: &sys::CUDA_KERNEL_NODE_PARAMS) -> Result<(SmallVec<[u16; 16]>, Vec<u64>)> {
    let (mut begins, mut words) = (SmallVec::new(), Vec::new());
    loop {
        let (mut offset, mut bytes) = (0, 0);
        // SAFETY: the function is live; the driver writes two numbers.
        let code =
            unsafe { foreign!(sys::cuFuncGetParamInfo(params.func, begins.len(), &mut offset, &mut bytes)) };
        if code == sys::CUresult::CUDA_ERROR_INVALID_VALUE {
            // There are no more.
            return Ok((begins, words));
        }
        check("cuFuncGetParamInfo", code)?;
        // SAFETY: the list has an entry for each argument, which has so many bytes.
        let from = unsafe { *params.kernelParams.add(begins.len()) };
        begins.push(words.len() as u16);
        // SAFETY: the list points to `bytes` bytes for this argument, which the node keeps while it lives.
        append(&mut words, unsafe { std::slice::from_raw_parts(from.cast::<u8>(), bytes) });
    }
}

/// The buffer of which a launch was told.
///
/// # Safety
/// The entries are null, or end as the driver has it.
unsafe fn buffer(mut entries: *mut *mut c_void) -> Option<(*const c_void, usize)> {
    if entries.is_null() {
        return None;
    }
    let (mut from, mut bytes) = (None, None);
    // SAFETY: the caller's promise.
    unsafe {
        while (*entries).addr() != END {
            let value = *entries.add(1);
            match (*entries).addr() {
                POINTER => from = Some(value.cast_const()),
                SIZE => bytes = Some(*value.cast::<usize>()),
                _ => return None,
            }
            entries = entries.add(2);
        }
    }
    from.zip(bytes)
}

use sys::CUlaunchAttributeID as Attribute;

/// What a node's launch says by an attribute.
///
/// # Safety
/// The node is live and a kernel's.
unsafe fn attribute(node: sys::CUgraphNode, which: Attribute) -> Result<sys::CUlaunchAttributeValue> {
    // SAFETY: a union of numbers, all of which may be 0.
    let mut value: sys::CUlaunchAttributeValue = unsafe { std::mem::zeroed() };
    // SAFETY: the node is live; the driver writes the attribute's value.
    unsafe { call!(cuGraphKernelNodeGetAttribute(node, which, &mut value)) }.map(|()| value)
}

impl Cluster {
    /// # Safety
    /// As for [`attribute`].
    unsafe fn of(node: sys::CUgraphNode) -> Result<Cluster> {
        // SAFETY: the caller's promise, and numbers are read as the attributes have them.
        unsafe {
            let size = attribute(node, Attribute::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)?.clusterDim;
            let spread =
                attribute(node, Attribute::CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE)?;
            // A number, since later drivers may have policies that the enum has not.
            let spread = spread.priority as u32;
            Ok(Cluster { size: [size.x, size.y, size.z], spread })
        }
    }
}
