//! The backward pass.

use std::sync::Arc;

use device::{AtCaller, Capture, Panicked, Shared};
use parking_lot::Mutex;
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;
use tensor::{Error, ErrorKind, Result, Tensor};

use crate::autocast::suspended;
use crate::gradcheck::perturbed;
use crate::gradients::{Entry, Sum, add_gradients, check_form, check_like, check_place, separate};
use crate::mode::with_recording;
use crate::place::on;
use crate::tape::captured::expect_as_now;
use crate::tape::{Claimed, Node, Vjp};
use crate::{Gradients, Grads, Var, VarId};

/// Options of [`Var::backward_with`].
#[derive(Clone, Debug, Default)]
pub struct BackwardOptions {
    /// Keep the saved tensors, so that another pass can follow.
    pub retain_graph: bool,
    /// Record the pass, so that its gradients have gradients. Keeps the saved tensors, too.
    pub create_graph: bool,
    /// The gradient of the value, of the same shape, type and device. The default is 1, for a value of one element. The
    /// gradient's own graph takes part only in a recorded pass.
    pub gradient: Option<Var>,
}

/// Options of [`grad`].
#[derive(Clone, Debug, Default)]
pub struct GradOptions {
    /// Keep the saved tensors, so that another pass can follow.
    pub retain_graph: bool,
    /// Record the pass, so that its gradients have gradients. Keeps the saved tensors, too.
    pub create_graph: bool,
    /// The gradient of each output, in order. A missing one or `None` is 1, for an output of one element.
    pub gradients: Vec<Option<Var>>,
}

#[derive::located]
impl Var {
    /// The gradients of this value, which has one element, with respect to all leaves on which it depends.
    ///
    /// Each op's gradient runs on the op's stream. Asynchronous: returns without waiting for the device, and the gradients
    /// may be used on any stream. Frees the saved tensors.
    ///
    /// # Errors
    /// `NoGradient` if the value depends on no leaf, `InvalidArgument` if it has several elements, `GraphConsumed` after an
    /// earlier pass, `VersionMismatch` after a change in place: nothing was launched then. `Async` if a gradient rule or a
    /// hook panicked.
    pub fn backward(&self) -> Result<Gradients> {
        self.backward_with(BackwardOptions::default())
    }

    /// [`backward`](Self::backward) with options.
    ///
    /// # Errors
    /// As for [`backward`](Self::backward); `ShapeMismatch`, `DTypeMismatch` or `DeviceMismatch` if
    /// the given gradient, or that of a hook or a rule, does not fit its value.
    pub fn backward_with(&self, options: BackwardOptions) -> Result<Gradients> {
        self.backward_each(options, |_, gradient| Ok(Some(gradient.clone())))
    }

    /// As [`backward_with`](Self::backward_with), but calls `arrived` with the gradient of each leaf, on the leaf's stream, as
    /// soon as that is complete and while the pass goes on. The [`Gradients`] contain what it returns, if anything.
    ///
    /// The order of the calls depends on the recorded ops alone.
    ///
    /// ```
    /// # use autograd::{BackwardOptions, Device, Tensor, Var};
    /// let leaf = |x: f64| Ok::<_, device::Error>(Var::leaf(Tensor::from_slice(&[x], &[1], &Device::cpu())?));
    /// let (x, y) = (leaf(2.0)?, leaf(3.0)?);
    /// let loss = x.mul(&y)?.mul(&y)?;
    /// let mut order = Vec::new();
    /// let gradients = loss.backward_each(BackwardOptions::default(), |leaf, gradient| {
    ///     order.push(leaf);
    ///     gradient.mul_scalar(10.0).map(Some)
    /// })?;
    /// assert_eq!(gradients.get(&x).map(|g| g.item::<f64>()).transpose()?, Some(90.0));
    /// assert_eq!(order, [x.id(), y.id()].map(Option::unwrap));
    /// # Ok::<(), device::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`backward_with`](Self::backward_with), and what `arrived` returns.
    pub fn backward_each(
        &self,
        options: BackwardOptions,
        mut arrived: impl FnMut(VarId, &Var) -> Result<Option<Var>>,
    ) -> Result<Gradients> {
        let BackwardOptions { retain_graph, create_graph, gradient } = options;
        let roots = [(self, gradient.as_ref())];
        let mut leaves = Vec::new();
        let mut sweep = Sweep::plan("backward", &roots, None)?;
        sweep.run(&roots, retain_graph, create_graph, |node, gradient| {
            if node.is_leaf() {
                let gradient = AtCaller::user(|| arrived(VarId(node.address()), gradient))?;
                leaves.extend(gradient.map(|gradient| (node.clone(), gradient)));
            }
            Ok(())
        })?;
        // Held here, it would be shared with the caller.
        drop(gradient);
        Gradients::collect(leaves, create_graph)
    }
}

/// The gradients of the sum of `outputs` with respect to `inputs`, which are leaves or intermediate values. `None` for an
/// input on which no output depends.
///
/// Only ops between the two run, each op's gradient on the op's stream. Asynchronous. Each gradient has a storage of its
/// own, so it may be changed in place.
///
/// # Errors
/// As for [`Var::backward_with`].
#[derive::located]
pub fn grad(outputs: &[Var], inputs: &[Var], options: GradOptions) -> Result<Vec<Option<Var>>> {
    let GradOptions { retain_graph, create_graph, gradients } = options;
    let given = |at: usize| gradients.get(at).and_then(Option::as_ref);
    let roots: SmallVec<[Root<'_>; 2]> =
        outputs.iter().enumerate().map(|(at, output)| (output, given(at))).collect();
    let mut sweep = Sweep::plan("grad", &roots, None)?;
    sweep.need_only(inputs);
    let mut found = sweep.gradients_of(inputs, &roots, retain_graph, create_graph)?;
    // Held here, the given gradients would be shared with the caller.
    drop(roots);
    drop(gradients);
    for (input, gradient) in inputs.iter().zip(&mut found) {
        if let (Some(node), Some(gradient)) = (&input.node, gradient) {
            separate(&node.place, gradient, create_graph)?;
        }
    }
    Ok(found)
}

/// Nodes at which a pass ends, as it does at all leaves. Their hooks are not called.
#[derive(Default)]
pub(crate) struct Ends(FxHashSet<usize>);

impl Ends {
    /// The nodes on which more than one of the values depends: each part of a backward pass ends there, and a last part
    /// continues from there. Leaves without hooks are not included, because the parts' gradients of leaves are added anyway.
    pub(crate) fn shared_by<'v>(values: impl IntoIterator<Item = &'v Var>) -> Ends {
        /// Stand for several values and for none in place of the number of one.
        const SEVERAL: usize = usize::MAX;
        const NEW: usize = usize::MAX - 1;
        let mut reached: FxHashMap<usize, usize> = FxHashMap::default();
        let mut ends = Ends::default();
        let mut open: Vec<&Shared<Node>> = Vec::new();
        for (value, var) in values.into_iter().enumerate() {
            open.extend(&var.node);
            while let Some(node) = open.pop() {
                // The only way to a node is the one that it was reached by, but for the value itself.
                if !node.is_unique() {
                    let known = reached.entry(node.address()).or_insert(NEW);
                    if *known == SEVERAL || *known == value {
                        continue;
                    }
                    *known = if *known == NEW { value } else { SEVERAL };
                    if *known == SEVERAL && (!node.is_leaf() || node.has_hooks()) {
                        ends.0.insert(node.address());
                    }
                }
                open.extend(node.inputs.iter().flatten());
            }
        }
        ends
    }

    fn contains(&self, node: &Shared<Node>) -> bool {
        self.0.contains(&node.address())
    }
}

/// The gradients of leaves and of the [`Ends`] in a part of a backward pass, from `root`.
pub(crate) fn backward_until(
    root: &Var,
    gradient: Option<Var>,
    ends: &Ends,
) -> Result<(Gradients, Gradients)> {
    let [leaves, at_ends] = parts(&[(root, gradient.as_ref())], ends)?;
    // Held here, it would be shared with the caller.
    drop(gradient);
    Ok((Gradients::collect(leaves, false)?, Gradients::collect(at_ends, false)?))
}

/// The last part of a pass: the gradients of the leaves on which the ends depend, from the sums of all parts.
pub(crate) fn backward_from(ends: Gradients) -> Result<Gradients> {
    let roots: Vec<(Var, Var)> = ends.into_nodes().collect();
    let roots: Vec<Root<'_>> = roots.iter().map(|(root, gradient)| (root, Some(gradient))).collect();
    let [leaves, _] = parts(&roots, &Ends::default())?;
    Gradients::collect(leaves, false)
}

/// The gradients of the leaves and of the ends in a pass from `roots` to both.
fn parts(roots: &[Root<'_>], ends: &Ends) -> Result<[Vec<Entry>; 2]> {
    let (mut leaves, mut at_ends) = (Vec::new(), Vec::new());
    Sweep::plan("backward", roots, Some(ends))?.run(roots, false, false, |node, gradient| {
        if ends.contains(node) {
            at_ends.push((node.clone(), gradient.clone()));
        } else if node.is_leaf() {
            leaves.push((node.clone(), gradient.clone()));
        }
        Ok(())
    })?;
    Ok([leaves, at_ends])
}

/// The gradients of values, with those that are given, with respect to each of `inputs` that is `needed`, for the rule of an op that
/// consists of others. The pass ends at the inputs, which are distinct, and does not call their hooks.
pub(crate) fn grad_within(
    op: &'static str,
    roots: &[Root<'_>],
    inputs: &[Var],
    needed: &[bool],
    create_graph: bool,
) -> Result<Grads> {
    let roots: Vec<Root<'_>> = roots.iter().copied().filter(|(output, _)| output.node.is_some()).collect();
    if roots.is_empty() {
        return Ok(inputs.iter().map(|_| None).collect());
    }
    let ends = Ends(inputs.iter().filter_map(|input| Some(input.node.as_ref()?.address())).collect());
    let mut sweep = Sweep::plan(op, &roots, Some(&ends))?;
    sweep.need_only(inputs.iter().zip(needed).filter(|(_, needed)| **needed).map(|(input, _)| input));
    Ok(sweep.gradients_of(inputs, &roots, create_graph, create_graph)?.into())
}

/// A value from which a pass starts, and its gradient unless that is 1.
pub(crate) type Root<'a> = (&'a Var, Option<&'a Var>);

/// A node that a pass will visit.
struct Stop<'a> {
    node: &'a Shared<Node>,
    /// Index in the sweep's edges of its first input.
    first_edge: usize,
    /// Whether its value depends on a target.
    needed: bool,
    /// Whether the pass ends here.
    is_end: bool,
    /// What was taken from the node, until its gradient has run.
    claimed: Claimed,
}

impl<'a> Stop<'a> {
    /// The inputs that the pass visits next.
    fn inputs(&self) -> &'a [Option<Shared<Node>>] {
        if self.is_end { &[] } else { &self.node.inputs }
    }
}

/// The nodes that a pass will visit, found before anything runs. The roots keep them.
#[derive(Default)]
struct Sweep<'a> {
    /// Breadth first from the roots.
    stops: Vec<Stop<'a>>,
    /// Index in `stops` of each node, by address, that several edges may reach.
    index: FxHashMap<usize, usize>,
    /// For each stop in turn, the indices in `stops` of its inputs; `NONE` for a constant.
    edges: Vec<usize>,
    /// The order of the pass: newest first.
    order: Vec<usize>,
    /// The sums of gradients that are not passed on yet, by stop: few at a time, even for large graphs.
    gradients: Mutex<FxHashMap<usize, Sum>>,
    /// Where it ends, besides the leaves.
    ends: Option<&'a Ends>,
}

const NONE: usize = usize::MAX;
/// Initial capacity in nodes, so that small passes allocate once.
const FEW: usize = 32;

impl<'a> Sweep<'a> {
    /// Finds the nodes between `roots` and the leaves or `ends`. Launches nothing.
    fn plan(op: &'static str, roots: &[Root<'a>], ends: Option<&'a Ends>) -> Result<Sweep<'a>> {
        let mut sweep = Sweep {
            stops: Vec::with_capacity(FEW),
            edges: Vec::with_capacity(FEW),
            ends,
            ..Sweep::default()
        };
        for &(root, gradient) in roots {
            check_root(op, root, gradient)?;
            if let Some(node) = root.tracked() {
                sweep.visit_again(node);
            }
        }
        if sweep.stops.is_empty() {
            return Err(Error::new(ErrorKind::NoGradient { op }));
        }
        let mut at = 0;
        while let Some(stop) = sweep.stops.get_mut(at) {
            stop.first_edge = sweep.edges.len();
            for input in stop.inputs() {
                let input = input.as_ref().map_or(NONE, |input| sweep.visit(input));
                sweep.edges.push(input);
            }
            at += 1;
        }
        sweep.order = (0..sweep.stops.len()).collect();
        // Equal sequences are of different threads and independent; the order in which they were found decides.
        sweep.order.sort_by_key(|&at| std::cmp::Reverse(sweep.stops[at].node.sequence));
        Ok(sweep)
    }

    /// The stop of a node that is the input of another one.
    fn visit(&mut self, node: &'a Shared<Node>) -> usize {
        // The holder of the only reference to a node is the only edge to it.
        if node.is_unique() { self.stop_at(node) } else { self.visit_again(node) }
    }

    /// The stop of a node that may have been visited before.
    fn visit_again(&mut self, node: &'a Shared<Node>) -> usize {
        let next = self.stops.len();
        let at = *self.index.entry(node.address()).or_insert(next);
        if at == next {
            self.stop_at(node);
            self.stops[at].is_end = self.ends.is_some_and(|ends| ends.contains(node));
        }
        at
    }

    fn stop_at(&mut self, node: &'a Shared<Node>) -> usize {
        self.stops.push(Stop {
            node,
            first_edge: 0,
            needed: true,
            is_end: false,
            claimed: Claimed::default(),
        });
        self.stops.len() - 1
    }

    /// Runs the pass, and returns the gradients of these values.
    fn gradients_of(
        mut self,
        values: &[Var],
        roots: &[Root<'_>],
        retain_graph: bool,
        create_graph: bool,
    ) -> Result<Vec<Option<Var>>> {
        let mut found = vec![None; values.len()];
        self.run(roots, retain_graph, create_graph, |node, gradient| {
            let is_here = |value: &Var| value.node.as_ref().is_some_and(|of| of.address() == node.address());
            for (slot, _) in found.iter_mut().zip(values).filter(|(_, value)| is_here(value)) {
                *slot = Some(gradient.clone());
            }
            Ok(())
        })?;
        Ok(found)
    }

    /// The stop of a value that the caller holds, so that the node was looked up when it was visited.
    fn find(&self, var: &Var) -> Option<usize> {
        self.index.get(&var.node.as_ref()?.address()).copied()
    }

    fn edges(&self, at: usize) -> &[usize] {
        let stop = &self.stops[at];
        &self.edges[stop.first_edge..stop.first_edge + stop.inputs().len()]
    }

    /// Marks as needed only the stops that depend on `targets`.
    fn need_only<'t>(&mut self, targets: impl IntoIterator<Item = &'t Var>) {
        self.stops.iter_mut().for_each(|stop| stop.needed = false);
        for target in targets {
            if let Some(at) = self.find(target) {
                self.stops[at].needed = true;
            }
        }
        // Oldest first, so inputs come before the ops that use them.
        for &at in self.order.iter().rev() {
            let leads = self.edges(at).iter().any(|&input| input != NONE && self.stops[input].needed);
            self.stops[at].needed |= leads;
        }
    }

    /// Runs the pass and calls `found` with each node's complete gradient.
    fn run(
        &mut self,
        roots: &[Root<'_>],
        retain_graph: bool,
        create_graph: bool,
        mut found: impl FnMut(&Shared<Node>, &Var) -> Result<()>,
    ) -> Result<()> {
        let mut coming = self.coming();
        self.claim(!retain_graph && !create_graph)?;
        if Capture::is_current() {
            expect_as_now(self.stops.iter().map(|stop| stop.node).filter(|node| node.is_leaf()));
        }
        let pass = || {
            for &(root, gradient) in roots {
                if let Some(at) = self.find(root).filter(|&at| self.stops[at].needed) {
                    let place = &self.stops[at].node.place;
                    let first = match gradient {
                        Some(gradient) => gradient.clone(),
                        None => {
                            let stream = place.elsewhere(root.device());
                            Var::constant(on(stream.as_ref(), || Tensor::ones_like(root.value()))?)
                        }
                    };
                    self.add(at, first)?;
                }
            }
            for step in 0..self.order.len() {
                let at = self.order[step];
                if !self.stops[at].needed {
                    continue;
                }
                self.step(at, create_graph, &mut found)?;
                // By age, leaves would come last of all.
                for edge in 0..self.edges(at).len() {
                    let input = self.edges(at)[edge];
                    if let Some(left) = coming.get_mut(input) {
                        *left -= 1;
                        if *left == 0 && self.stops[input].node.is_leaf() {
                            self.step(input, create_graph, &mut found)?;
                        }
                    }
                }
            }
            Ok(())
        };
        // Gradients run in the recorded types.
        suspended(|| with_recording(create_graph.into(), pass))
    }

    /// For each stop, the number of the pass's edges that lead to it.
    fn coming(&self) -> SmallVec<[u32; 64]> {
        let mut coming = SmallVec::from_elem(0, self.stops.len());
        for at in (0..self.stops.len()).filter(|&at| self.stops[at].needed) {
            self.edges(at).iter().filter(|&&input| input != NONE).for_each(|&input| coming[input] += 1);
        }
        coming
    }

    /// Checks every node before the first runs, and takes their saved tensors and hooks.
    fn claim(&mut self, consume: bool) -> Result<()> {
        for step in 0..self.order.len() {
            let stop = &mut self.stops[self.order[step]];
            if !stop.needed || stop.is_end {
                continue;
            }
            match stop.node.claim(consume) {
                Ok(claimed) => stop.claimed = claimed,
                Err(error) => {
                    if consume {
                        self.unclaim(step);
                    }
                    return Err(self.stops[self.order[step]].node.failed(error));
                }
            }
        }
        Ok(())
    }

    /// Returns what was taken from the first nodes of the order.
    fn unclaim(&mut self, claimed: usize) {
        for &at in &self.order[..claimed] {
            let stop = &mut self.stops[at];
            if stop.needed && !stop.is_end {
                stop.node.unclaim(std::mem::take(&mut stop.claimed));
            }
        }
    }

    /// Runs one node's gradient on its stream.
    fn step(
        &mut self,
        at: usize,
        create_graph: bool,
        found: &mut impl FnMut(&Shared<Node>, &Var) -> Result<()>,
    ) -> Result<()> {
        let stop = &mut self.stops[at];
        let (node, Claimed { saved, hooks }) = (stop.node, std::mem::take(&mut stop.claimed));
        let Some(mut sum) = self.gradients.get_mut().remove(&at) else { return Ok(()) };
        let mut needed: SmallVec<[bool; 8]> = SmallVec::new();
        for &input in self.edges(at) {
            needed.push(input != NONE && self.stops[input].needed);
        }
        // Filled in place: gradients are large to move.
        let mut grads = Grads::new();
        let stream = node.place.elsewhere(sum.device());
        on(stream.as_ref(), || sum.complete().map(drop))?;
        let mut gradient = sum.into_value();
        on(stream.as_ref(), || {
            caught(node, || {
                if let Some(perturbed) = perturbed(&gradient.value) {
                    gradient.value = perturbed;
                }
                for hook in hooks.iter().flat_map(|hooks| hooks.iter()) {
                    if let Some(changed) = hook.call(&gradient)? {
                        check_like("register_hook", &gradient, &changed)?;
                        gradient = changed;
                    }
                }
                found(node, &gradient)?;
                if needed.contains(&true) {
                    let sums = (&self.gradients, self.edges(at));
                    let cx = Vjp { node, saved: &saved, create_graph, needed: &needed, sums };
                    grads = node.vjp(&cx, &gradient)?;
                    let (op, expected, given) = (node.op, node.inputs.len(), grads.len());
                    if given != expected {
                        return Err(Error::new(ErrorKind::GradientCount { op, expected, given }));
                    }
                }
                Ok(())
            })
        })?;
        // A gradient is linear in that of the op's value.
        let is_tracked = gradient.requires_grad();
        for ((&input, grad), &needed) in self.edges(at).iter().zip(&grads).zip(&needed) {
            if let (true, Some(grad)) = (needed, grad) {
                let input = self.stops[input].node;
                if create_graph && is_tracked && !grad.requires_grad() {
                    return Err(node.failed(Error::new(ErrorKind::NotDifferentiable { op: node.op })));
                }
                check_form(node.op, &input.shape, input.dtype, grad)
                    .and_then(|()| check_place(node.op, &input.place, grad, (&node.place, gradient.device())))
                    .map_err(|error| node.failed(error))?;
            }
        }
        // Dropped first, because a gradient that is not shared may be added to in place.
        drop(gradient);
        let first_edge = self.stops[at].first_edge;
        for (nth, (grad, needed)) in grads.iter_mut().zip(needed).enumerate() {
            if let (true, Some(grad)) = (needed, grad.take()) {
                self.add(self.edges[first_edge + nth], grad)?;
            }
        }
        Ok(())
    }

    /// Keeps the first gradient of a node and adds later ones to it, on the node's stream.
    fn add(&mut self, at: usize, gradient: Var) -> Result<()> {
        let Some(sum) = self.gradients.get_mut().get_mut(&at) else {
            self.gradients.get_mut().insert(at, Sum::of(gradient));
            return Ok(());
        };
        let stream = self.stops[at].node.place.elsewhere(gradient.device());
        on(stream.as_ref(), || add_gradients(sum.complete()?, &gradient))
    }
}

fn check_root(op: &'static str, root: &Var, gradient: Option<&Var>) -> Result<()> {
    match gradient {
        Some(gradient) => check_like(op, root, gradient),
        None if root.value().elements() == 1 => Ok(()),
        None => Err(Error::invalid(
            op,
            "gradient",
            "given for a value of several elements",
            format_args!("none for shape {:?}", root.shape()),
        )),
    }
}

/// Turns a panic of a rule or a hook into an error that names the op.
fn caught<R>(node: &Node, f: impl FnOnce() -> Result<R>) -> Result<R> {
    let done = Panicked::catch(f).unwrap_or_else(|panicked| {
        Err(Error::new(ErrorKind::Async { op: node.op, stream: node.place.id(), source: Arc::new(panicked) }))
    });
    done.map_err(|error| node.failed(error))
}

#[cfg(test)]
#[allow(clippy::panic)]
mod tests;
