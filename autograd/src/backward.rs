//! The backward pass.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use device::Panicked;
use smallvec::SmallVec;
use tensor::{Error, Result, Stream, Tensor};

use crate::mode::{is_recording, with_recording};
use crate::tape::{Node, Vjp};
use crate::{Gradients, Grads, Var};

/// How to run [`Var::backward_with`].
#[derive(Clone, Debug, Default)]
pub struct BackwardOptions {
    /// Keep the saved tensors, so that another pass can follow.
    pub retain_graph: bool,
    /// Record the pass itself, so that its gradients have gradients. Keeps the saved tensors, too.
    pub create_graph: bool,
    /// The gradient of the value, of the same shape. One by default, which needs a value of one element.
    pub gradient: Option<Var>,
}

/// How to run [`grad`].
#[derive(Clone, Debug, Default)]
pub struct GradOptions {
    /// Keep the saved tensors, so that another pass can follow.
    pub retain_graph: bool,
    /// Record the pass itself, so that its gradients have gradients. Keeps the saved tensors, too.
    pub create_graph: bool,
    /// The gradient of each output, in order; where missing or `None` it is one, which needs an output of one
    /// element.
    pub gradients: Vec<Option<Var>>,
}

impl Var {
    /// The gradients of this value, which has one element, with respect to all leaves that led to it.
    ///
    /// Each op's gradient runs on the stream that the op ran on. Asynchronous: returns without waiting for the
    /// device, and the gradients may be used on any stream. Frees the saved tensors.
    ///
    /// # Errors
    /// [`Error::NoGradient`] if no leaf led to the value, [`Error::InvalidArgument`] if it has several elements,
    /// [`Error::GraphConsumed`] after an earlier pass, [`Error::VersionMismatch`] after a change in place,
    /// [`Error::Async`] if a gradient rule or a hook panicked. Nothing was launched in the first four cases.
    pub fn backward(&self) -> Result<Gradients> {
        self.backward_with(BackwardOptions::default())
    }

    /// [`backward`](Self::backward) with options.
    ///
    /// # Errors
    /// As for [`backward`](Self::backward); [`Error::ShapeMismatch`] if the given gradient has another shape.
    pub fn backward_with(&self, options: BackwardOptions) -> Result<Gradients> {
        let BackwardOptions { retain_graph, create_graph, gradient } = options;
        let roots = [(self, gradient.as_ref())];
        let sweep = Sweep::plan("backward", &roots, None)?;
        let mut leaves = Vec::new();
        sweep.run(&roots, retain_graph, create_graph, |at, gradient| {
            let node = &sweep.nodes[at];
            if node.is_leaf() {
                leaves.push((Arc::clone(node), gradient.clone()));
            }
        })?;
        Ok(Gradients::collect(leaves))
    }
}

/// The gradients of `outputs`, taken together, with respect to `inputs`: leaves or values on the way. `None` for an
/// input that no output depends on.
///
/// Only what lies between the two is run, each op's gradient on the op's stream. Asynchronous.
///
/// # Errors
/// As for [`Var::backward`].
pub fn grad(outputs: &[Var], inputs: &[Var], options: GradOptions) -> Result<Vec<Option<Var>>> {
    let GradOptions { retain_graph, create_graph, gradients } = options;
    let given = |at: usize| gradients.get(at).and_then(Option::as_ref);
    let roots: SmallVec<[Root<'_>; 2]> =
        outputs.iter().enumerate().map(|(at, output)| (output, given(at))).collect();
    let sweep = Sweep::plan("grad", &roots, Some(inputs))?;
    let targets: Vec<_> = inputs.iter().map(|input| sweep.find(input)).collect();
    let mut found = vec![None; inputs.len()];
    sweep.run(&roots, retain_graph, create_graph, |at, gradient| {
        for (slot, target) in found.iter_mut().zip(&targets) {
            if *target == Some(at) {
                *slot = Some(gradient.clone());
            }
        }
    })?;
    Ok(found)
}

/// A value that a pass starts from, and its gradient if it is not one.
type Root<'a> = (&'a Var, Option<&'a Var>);

/// The nodes that a pass will visit, found before anything runs.
struct Sweep {
    /// Breadth first from the roots.
    nodes: Vec<Arc<Node>>,
    index: HashMap<usize, usize, BuildHasherDefault<AddressHasher>>,
    /// For each node in turn, where in `nodes` its inputs are; `NONE` for a constant.
    edges: Vec<usize>,
    /// Where in `edges` each node's inputs start.
    first_edge: Vec<usize>,
    /// The order of the pass: newest first.
    order: Vec<usize>,
    /// Whether the node leads to what is asked for.
    needed: Vec<bool>,
}

const NONE: usize = usize::MAX;

impl Sweep {
    /// Finds the nodes between `roots` and `targets`, or the leaves if there are none. Launches nothing.
    fn plan(op: &'static str, roots: &[Root<'_>], targets: Option<&[Var]>) -> Result<Sweep> {
        let mut sweep = Sweep {
            nodes: Vec::new(),
            index: HashMap::default(),
            edges: Vec::new(),
            first_edge: Vec::new(),
            order: Vec::new(),
            needed: Vec::new(),
        };
        for &(root, gradient) in roots {
            check_root(op, root, gradient)?;
            if let Some(node) = &root.node {
                sweep.visit(node);
            }
        }
        if sweep.nodes.is_empty() {
            return Err(Error::NoGradient { op });
        }
        let mut at = 0;
        while let Some(node) = sweep.nodes.get(at).map(Arc::clone) {
            sweep.first_edge.push(sweep.edges.len());
            for input in &node.inputs {
                let input = input.as_ref().map_or(NONE, |input| sweep.visit(input));
                sweep.edges.push(input);
            }
            at += 1;
        }
        sweep.order = (0..sweep.nodes.len()).collect();
        // Equal sequences are of different threads and independent; the order in which they were found decides.
        sweep.order.sort_by_key(|&at| std::cmp::Reverse(sweep.nodes[at].sequence));
        sweep.needed = match targets {
            None => vec![true; sweep.nodes.len()],
            Some(targets) => sweep.leading_to(targets),
        };
        Ok(sweep)
    }

    fn visit(&mut self, node: &Arc<Node>) -> usize {
        let next = self.nodes.len();
        let at = *self.index.entry(address(node)).or_insert(next);
        if at == next {
            self.nodes.push(Arc::clone(node));
        }
        at
    }

    fn find(&self, var: &Var) -> Option<usize> {
        self.index.get(&address(var.node.as_ref()?)).copied()
    }

    fn edges(&self, at: usize) -> &[usize] {
        let first = self.first_edge[at];
        &self.edges[first..first + self.nodes[at].inputs.len()]
    }

    fn leading_to(&self, targets: &[Var]) -> Vec<bool> {
        let mut leads = vec![false; self.nodes.len()];
        targets.iter().filter_map(|target| self.find(target)).for_each(|at| leads[at] = true);
        // Oldest first: inputs come before what was made from them.
        for &at in self.order.iter().rev() {
            leads[at] |= self.edges(at).iter().any(|&input| input != NONE && leads[input]);
        }
        leads
    }

    /// Runs the pass, and shows each node's complete gradient to `found`.
    fn run(
        &self,
        roots: &[Root<'_>],
        retain_graph: bool,
        create_graph: bool,
        mut found: impl FnMut(usize, &Var),
    ) -> Result<()> {
        let consume = !retain_graph && !create_graph;
        self.claim(consume)?;
        with_recording(create_graph, || {
            let mut slots: Vec<Option<Var>> = vec![None; self.nodes.len()];
            for &(root, gradient) in roots {
                if let Some(at) = self.find(root).filter(|&at| self.needed[at]) {
                    let stream = &self.nodes[at].stream;
                    let first = match gradient {
                        Some(gradient) => gradient.clone(),
                        None => on_stream(stream, || Tensor::ones_like(root.value()).map(Var::constant))?,
                    };
                    self.add(&mut slots, at, first)?;
                }
            }
            for &at in &self.order {
                let gradient = slots[at].take();
                if self.needed[at] {
                    self.step(at, gradient, create_graph, &mut slots, &mut found)?;
                }
            }
            Ok(())
        })
    }

    /// Checks every node before the first runs, and claims them where the pass frees what they saved.
    fn claim(&self, consume: bool) -> Result<()> {
        let needed = || self.order.iter().filter(|&&at| self.needed[at]).map(|&at| &self.nodes[at]);
        for (claimed, node) in needed().enumerate() {
            if let Err(error) = node.claim(consume) {
                needed().take(claimed).for_each(|node| node.unclaim());
                return Err(error);
            }
        }
        Ok(())
    }

    /// Runs one node's gradient on its stream.
    fn step(
        &self,
        at: usize,
        gradient: Option<Var>,
        create_graph: bool,
        slots: &mut [Option<Var>],
        found: &mut impl FnMut(usize, &Var),
    ) -> Result<()> {
        let node = &self.nodes[at];
        let (saved, hooks) = node.take();
        let Some(mut gradient) = gradient else { return Ok(()) };
        let edges = self.edges(at);
        let mut needed: SmallVec<[bool; 8]> = SmallVec::new();
        edges.iter().for_each(|&input| needed.push(input != NONE && self.needed[input]));
        // Filled in place: gradients are large to move.
        let mut grads = Grads::new();
        on_stream(&node.stream, || {
            caught(node, || {
                for hook in &hooks {
                    if let Some(changed) = hook(&gradient)? {
                        check_shape("register_hook", &node.shape, &changed)?;
                        gradient = changed;
                    }
                }
                found(at, &gradient);
                if needed.contains(&true) {
                    grads = node.vjp(&Vjp::new(node, &saved, create_graph, &needed), &gradient)?;
                }
                Ok(())
            })
        })?;
        // Whoever shares the gradient from here on is somebody else, which decides whether it may be added to.
        drop(gradient);
        for ((input, grad), needed) in edges.iter().zip(grads).zip(needed) {
            if let (true, Some(grad)) = (needed, grad) {
                check_shape(node.op, &self.nodes[*input].shape, &grad)?;
                self.add(slots, *input, grad)?;
            }
        }
        Ok(())
    }

    /// Moves the first gradient of a node into its slot, and adds later ones to it on the node's stream.
    fn add(&self, slots: &mut [Option<Var>], at: usize, gradient: Var) -> Result<()> {
        match &mut slots[at] {
            Some(sum) => on_stream(&self.nodes[at].stream, || add_gradients(sum, &gradient)),
            slot => {
                *slot = Some(gradient);
                Ok(())
            }
        }
    }
}

fn check_root(op: &'static str, root: &Var, gradient: Option<&Var>) -> Result<()> {
    match gradient {
        Some(gradient) => check_shape(op, root.shape(), gradient),
        None if root.value().elements() == 1 => Ok(()),
        None => Err(Error::InvalidArgument {
            op,
            argument: "gradient",
            expected: "given for a value of several elements",
            value: format!("none for shape {:?}", root.shape()).into(),
        }),
    }
}

fn check_shape(op: &'static str, expected: &[usize], gradient: &Var) -> Result<()> {
    if expected == gradient.shape() {
        return Ok(());
    }
    Err(Error::ShapeMismatch { op, lhs: expected.into(), rhs: gradient.shape().into() })
}

/// Turns a panic of a rule or a hook into an error that names the op.
fn caught<R>(node: &Node, f: impl FnOnce() -> Result<R>) -> Result<R> {
    catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|payload| {
        let source = Arc::new(Panicked::new(&*payload));
        Err(Error::Async { op: node.op, stream: node.stream.id(), source })
    })
}

/// Runs `f` with `stream` as the current stream.
pub(crate) fn on_stream<R>(stream: &Stream, f: impl FnOnce() -> R) -> R {
    if Stream::with_current(stream.device(), |current| current.id() == stream.id()) {
        f()
    } else {
        stream.scope(f)
    }
}

/// `sum += gradient`, in place where nobody else can see it.
pub(crate) fn add_gradients(sum: &mut Var, gradient: &Var) -> Result<()> {
    let recorded = is_recording() && (sum.requires_grad() || gradient.requires_grad());
    if recorded || !sum.value.is_unique() || !sum.value.is_contiguous() {
        *sum = sum.add(gradient)?;
        return Ok(());
    }
    sum.value.add_(gradient.value())
}

/// What tells nodes apart while they live.
pub(crate) fn address(node: &Arc<Node>) -> usize {
    Arc::as_ptr(node).cast::<()>() as usize
}

/// Addresses are spread well enough by one multiplication.
#[derive(Default)]
struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_usize(usize::from(byte)));
    }

    fn write_usize(&mut self, value: usize) {
        let mixed = (self.0 ^ value as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 32);
    }
}
