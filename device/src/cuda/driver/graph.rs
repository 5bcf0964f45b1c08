//! Plans as graphs of the driver. Each command is captured by itself, with the commands that it needs as dependencies, so that
//! a kernel of ours and one of a library become nodes in the same way.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use super::ffi::sys;
use smallvec::SmallVec;

use super::call::{call, check};
use super::context::Context;
use super::pinned::Staged;
use super::stream::DriverStream;
use super::{Grid, Queue, Target};
use crate::core::Core;
use crate::graph::Node;
use crate::{Error, Moment, Result, StreamId, foreign};

/// A graph that the driver launches, and what its nodes use beside the memory of the plan.
pub(crate) struct DriverGraph {
    exec: Exec,
    /// For each command, its kernels in the order in which it enqueues them.
    kernels: Vec<KernelNodes>,
    /// Where commands were captured: it reports what their kernels meet.
    stream: DriverStream,
    /// What uploads read.
    constants: Vec<Staged>,
    core: std::sync::Weak<Core>,
    /// Whether products of F32 rounded what they multiply when it was made.
    tf32: bool,
}

/// Nodes of kernels.
pub(crate) type KernelNodes = SmallVec<[sys::CUgraphNode; 2]>;

// SAFETY: the driver's handles may be used from any thread, one at a time, which the executable's lock sees to.
unsafe impl Send for DriverGraph {}

/// What a command that is captured adds to the graph.
pub(crate) struct Captured {
    graph: sys::CUgraph,
    kernels: RefCell<KernelNodes>,
    constants: RefCell<Vec<Staged>>,
}

/// The nodes of a command whose kernels get other arguments.
pub(crate) struct Updated<'a> {
    graph: &'a DriverGraph,
    command: usize,
    next: Cell<usize>,
}

/// A graph that is not made ready.
pub(crate) struct Graph(pub(super) sys::CUgraph);

impl Graph {
    fn new() -> Result<Graph> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the driver writes a handle.
        unsafe { call!(cuGraphCreate(&mut raw, 0))? };
        Ok(Graph(raw))
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: created once, destroyed once.
        unsafe { foreign!(sys::cuGraphDestroy(self.0)) };
    }
}

/// A graph made ready. Its nodes are named by those of the graph that it was made from.
struct Exec {
    raw: sys::CUgraphExec,
    _graph: Graph,
    context: Arc<Context>,
}

impl Drop for Exec {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: created once, destroyed once; the driver lets a launch under way run to its end.
            unsafe { foreign!(sys::cuGraphExecDestroy(self.raw)) };
        }
    }
}

impl DriverStream {
    /// A graph of `nodes`, each after those that it needs. The stream is one of the core.
    pub(crate) fn graph(&self, core: &Arc<Core>, nodes: &[Node]) -> Result<DriverGraph> {
        let stream = self.sibling()?;
        let never = Moment { stream: StreamId::fresh(), tick: 0 };
        stream.bind()?;
        let graph = Graph::new()?;
        let (mut kernels, mut constants) = (Vec::with_capacity(nodes.len()), Vec::new());
        // The nodes that come last in each command.
        let mut ends: Vec<KernelNodes> = Vec::with_capacity(nodes.len());
        for node in nodes {
            let mut after: KernelNodes =
                node.needs.iter().flat_map(|&need| ends[need as usize].iter().copied()).collect();
            // Commands that enqueue nothing hand on what they come after.
            after.sort_unstable();
            after.dedup();
            let captured =
                Captured { graph: graph.0, kernels: RefCell::default(), constants: RefCell::default() };
            let queue = Queue::new(core, &stream, node.op, never, Target::Graph(&captured));
            stream.begin_capture(graph.0, &after)?;
            let enqueued = node.work.enqueue(&queue);
            let last = stream.captured_nodes();
            if let Err(error) = stream.end_capture() {
                // What ends a capture like this has destroyed the graph, too.
                std::mem::forget(graph);
                enqueued?;
                return Err(error);
            }
            enqueued?;
            let last = last?;
            // What enqueues nothing leaves those before it.
            ends.push(last);
            kernels.push(captured.kernels.into_inner());
            constants.append(&mut captured.constants.into_inner());
        }
        let mut raw = std::ptr::null_mut();
        // SAFETY: the context is current; the driver writes a handle.
        let code = unsafe { foreign!(sys::cuGraphInstantiateWithFlags(&mut raw, graph.0, 0)) };
        check("cuGraphInstantiate", code)?;
        // Not uploaded here: the driver does not order a launch on another stream after `cuGraphUpload`. The first launch
        // uploads the graph on its own stream.
        let exec = Exec { raw, _graph: graph, context: Arc::clone(&self.context) };
        Ok(DriverGraph { exec, kernels, stream, constants, core: Arc::downgrade(core), tf32: core.tf32() })
    }
}

impl DriverGraph {
    /// Has later launches run the kernels of a command with the arguments that it has now.
    pub(crate) fn update(&self, command: usize, node: &Node) -> Result<()> {
        let Some(core) = self.core.upgrade() else { return Ok(()) };
        let updated = Updated { graph: self, command, next: Cell::new(0) };
        let never = Moment { stream: self.stream.reporter(), tick: 0 };
        node.work.enqueue(&Queue::new(&core, &self.stream, node.op, never, Target::Update(&updated)))?;
        // One that is left over would go on with the arguments that it had.
        if updated.next.get() < self.kernels[command].len() {
            return Err(Error::captured(
                "replay",
                "a command of the graph has fewer kernels than it was captured with",
            ));
        }
        Ok(())
    }

    /// Launches it on the queue's stream.
    pub(crate) fn launch(&mut self, queue: &Queue<'_>) -> Result<()> {
        self.constants.iter_mut().for_each(|constant| constant.used_at(queue.moment));
        // SAFETY: the handles are live, and the launch was told of the memory that the nodes use.
        unsafe { call!(cuGraphLaunch(self.exec.raw, queue.stream.raw())) }
    }
}

impl Captured {
    /// A kernel was just captured on `stream`.
    pub(crate) fn add_kernel(&self, stream: &DriverStream) -> Result<()> {
        self.kernels.borrow_mut().extend(stream.captured_nodes()?);
        Ok(())
    }

    /// Captures `first` and `second` on `stream` after what was captured before, and what follows after both.
    pub(crate) fn beside(
        &self,
        stream: &DriverStream,
        first: impl FnOnce() -> Result<()>,
        second: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let before = stream.captured_nodes()?;
        first()?;
        let mut ends = stream.captured_nodes()?;
        stream.end_capture()?;
        stream.begin_capture(self.graph, &before)?;
        second()?;
        ends.extend(stream.captured_nodes()?);
        ends.sort_unstable();
        ends.dedup();
        stream.end_capture()?;
        stream.begin_capture(self.graph, &ends)
    }

    /// Captures what `enqueue` has a library enqueue on `stream` as a graph of its own, which becomes one node. A library that
    /// keeps something for each capture tells them apart by their numbers, and all captures into one graph have the same.
    pub(crate) fn library(
        &self,
        stream: &DriverStream,
        enqueue: impl FnOnce(sys::CUstream) -> Result<()>,
    ) -> Result<()> {
        let before = stream.captured_nodes()?;
        stream.end_capture()?;
        let node = stream.capture(enqueue).and_then(|inner| self.add(Graph(inner), &before));
        // What comes next finds a capture, whatever has failed.
        stream.begin_capture(self.graph, node.as_ref().map_or(&before[..], std::slice::from_ref))?;
        node.map(drop)
    }

    /// A node that runs `inner`.
    fn add(&self, inner: Graph, after: &[sys::CUgraphNode]) -> Result<sys::CUgraphNode> {
        let mut node = std::ptr::null_mut();
        // SAFETY: the handles are live; the driver copies the list and the graph, and writes a handle.
        unsafe {
            call!(cuGraphAddChildGraphNode(&mut node, self.graph, after.as_ptr(), after.len(), inner.0))
        }?;
        Ok(node)
    }

    pub(crate) fn keep(&self, constant: Staged) {
        self.constants.borrow_mut().push(constant);
    }
}

impl Updated<'_> {
    /// As the other commands of the graph, whatever the device allows now.
    pub(crate) fn tf32(&self) -> bool {
        self.graph.tf32
    }

    /// Gives the next kernel of the command other arguments.
    ///
    /// # Safety
    /// As for [`Queue::kernel`]; `params` are those of `function`.
    pub(crate) unsafe fn set_kernel(
        &self,
        function: sys::CUfunction,
        grid: Grid,
        params: *mut *mut std::ffi::c_void,
    ) -> Result<()> {
        let next = self.next.replace(self.next.get() + 1);
        let Some(&node) = self.graph.kernels[self.command].get(next) else {
            return Err(Error::captured(
                "replay",
                "a command of the graph has more kernels than it was captured with",
            ));
        };
        let ([bx, by, bz], [tx, ty, tz]) = (grid.blocks, grid.threads);
        let params = sys::CUDA_KERNEL_NODE_PARAMS {
            func: function,
            gridDimX: bx,
            gridDimY: by,
            gridDimZ: bz,
            blockDimX: tx,
            blockDimY: ty,
            blockDimZ: tz,
            sharedMemBytes: grid.shared_bytes,
            kernelParams: params,
            extra: std::ptr::null_mut(),
            kern: std::ptr::null_mut(),
            ctx: std::ptr::null_mut(),
        };
        // SAFETY: the handles are live; the driver copies the arguments before it returns.
        unsafe { call!(cuGraphExecKernelNodeSetParams_v2(self.graph.exec.raw, node, &params)) }
    }
}
