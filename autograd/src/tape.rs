//! The tape: recorded ops with their streams, and what their gradients need.

pub(crate) mod captured;
mod hook;
pub(crate) mod noticed;
mod var;

use std::cell::RefCell;
use std::fmt;
use std::mem::ManuallyDrop;
use std::panic::Location;
use std::sync::atomic::{AtomicBool, Ordering};

use device::{AtCaller, OnDrop, Shared, SpinLock, StreamId};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use tensor::{DType, Error, ErrorKind, Result, Tensor};

use crate::gradcheck::perturbed;
use crate::gradients::Sum;
use crate::mode::{Recording, next_sequence, recording};
use crate::place::OpStream;

use captured::note_frozen;
use hook::{Hook, Hooks};
use noticed::{made_again, notice, notice_again};

pub use hook::HookHandle;
pub use var::{Var, VarId};

/// One gradient for each input of an op; `None` where none flows or none is needed.
pub type Grads = SmallVec<[Option<Var>; 2]>;

/// The gradient of an op's only input.
#[inline]
pub(crate) fn one(gradient: Var) -> Grads {
    let mut grads = Grads::new();
    grads.push(Some(gradient));
    grads
}

/// What an op keeps for its gradient.
#[derive(Clone, Copy, Debug)]
pub enum Save<'a> {
    /// The op's input with this index.
    Input(usize),
    /// The op's output.
    Output,
    /// A tensor through which no gradients flow.
    Tensor(&'a Tensor),
}

/// The gradient rule of a recorded op.
type Rule = dyn Fn(&Vjp<'_>, &Var) -> Result<Grads> + Send + Sync;

/// One recorded op, or a leaf.
pub(crate) struct Node {
    pub(crate) op: &'static str,
    /// Greater than that of every input.
    pub(crate) sequence: u64,
    /// The call that recorded the op.
    location: &'static Location<'static>,
    /// The stream of the op, on which its gradient runs, too.
    pub(crate) place: OpStream,
    pub(crate) shape: SmallVec<[usize; 4]>,
    pub(crate) dtype: DType,
    /// The ops that made the inputs; `None` for constants. Empty for a leaf.
    pub(crate) inputs: SmallVec<[Option<Shared<Node>>; 3]>,
    state: SpinLock<State>,
    /// Whether hooks were ever added; read without the lock.
    hooked: AtomicBool,
    /// Of a leaf: whether ops take it as a constant.
    pub(crate) frozen: AtomicBool,
    /// Whether the rule needs to be dropped.
    rule_owns: bool,
    rule: Box<Rule>,
}

#[derive(Default)]
struct State {
    consumed: bool,
    /// Whether the node keeps what it saved after a pass.
    outlasts: bool,
    /// A `Vec`, because most ops save little and nodes should stay small.
    saved: Vec<Saved>,
    hooks: Hooks,
}

/// What a pass takes from a node when it starts.
#[derive(Default)]
pub(crate) struct Claimed {
    pub(crate) saved: Vec<Saved>,
    pub(crate) hooks: Hooks,
}

#[derive(Clone)]
pub(crate) struct Saved {
    tensor: Tensor,
    version: u32,
    source: Source,
}

impl Saved {
    /// The tensor as the op at `node` read or made it.
    fn value(&self, node: &Node) -> Tensor {
        let is_tracked = matches!(self.source, Source::Input(input) if node.inputs[input].is_some());
        let moved = if is_tracked { perturbed(&self.tensor) } else { None };
        moved.unwrap_or_else(|| self.tensor.clone())
    }
}

#[derive(Clone, Copy)]
enum Source {
    Input(usize),
    Output,
    Constant,
}

/// The context in which a gradient rule runs.
pub struct Vjp<'a> {
    pub(crate) node: &'a Shared<Node>,
    pub(crate) saved: &'a [Saved],
    /// Whether the pass is recorded.
    pub(crate) create_graph: bool,
    /// For each input, whether its gradient is needed.
    pub(crate) needed: &'a [bool],
    /// The sums of the pass, and where those of the inputs are.
    pub(crate) sums: (&'a Mutex<FxHashMap<usize, Sum>>, &'a [usize]),
}

impl Vjp<'_> {
    /// The saved tensor with this index, in the order given to [`record`].
    ///
    /// # Panics
    /// If the op saved fewer. The backward pass turns the panic into an error that names the op.
    pub fn saved(&self, index: usize) -> Var {
        let saved = &self.saved[index];
        let node = match saved.source {
            _ if !self.create_graph => None,
            Source::Input(input) => self.node.inputs[input].clone(),
            Source::Output => Some(self.node.clone()),
            Source::Constant => None,
        };
        Var { value: saved.value(self.node), node }
    }

    /// The input with this index, on the tape. The op saved it as the tensor with the same index.
    pub(crate) fn input(&self, index: usize) -> Var {
        Var { value: self.saved[index].value(self.node), node: self.node.inputs[index].clone() }
    }

    /// The number of the op's inputs.
    pub(crate) fn inputs(&self) -> usize {
        self.node.inputs.len()
    }

    /// Whether the pass is recorded, so that its gradients have gradients.
    pub fn is_recorded(&self) -> bool {
        self.create_graph
    }

    /// Whether the gradient of this input is needed.
    #[inline]
    pub fn needs(&self, input: usize) -> bool {
        self.needed.get(input).copied().unwrap_or(false)
    }
}

impl fmt::Debug for Vjp<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Vjp").field("op", &self.node.op).finish_non_exhaustive()
    }
}

/// Records an op that computed `value` from `inputs` on the current stream, on which its gradient will run.
///
/// `vjp` receives the gradient of the value and returns that of each input. It is written on [`Var`]s, so that it can be
/// recorded in turn. Tensors that it needs go through `saved`: they are checked for changes in place and freed after the
/// backward pass. If there is nothing to record, the result is a constant, so ops always call this.
///
/// ```
/// use autograd::{Device, Result, Save, Tensor, Var, record};
/// fn cube(x: &Var) -> Result<Var> {
///     let value = x.value().pow_scalar(3.0)?;
///     Ok(record("cube", &[x], &[Save::Input(0)], value, |cx, grad| {
///         let slope = cx.saved(0).square()?.mul_scalar(3.0)?;
///         Ok([Some(grad.mul(&slope)?)].into_iter().collect())
///     }))
/// }
/// let x = Var::leaf(Tensor::from_slice(&[2.0f64], &[1], &Device::cpu())?);
/// let gradients = cube(&x)?.backward()?;
/// assert_eq!(gradients.get(&x).map(|g| g.to_vec::<f64>()).transpose()?, Some(vec![12.0]));
/// # Ok::<(), autograd::Error>(())
/// ```
#[inline]
#[track_caller]
pub fn record<F>(op: &'static str, inputs: &[&Var], saved: &[Save<'_>], value: Tensor, vjp: F) -> Var
where
    F: Fn(&Vjp<'_>, &Var) -> Result<Grads> + Send + Sync + 'static,
{
    let recording = recording();
    match recording {
        Recording::On | Recording::Off => {}
        Recording::Noticed => notice(inputs, saved),
        Recording::Again => notice_again(inputs),
    }
    let mut is_constant = true;
    for input in inputs {
        let is_tracked = input.tracked().is_some();
        is_constant &= !is_tracked;
        if let (Some(frozen), false) = (&input.node, is_tracked || recording == Recording::Off) {
            note_frozen(frozen);
        }
    }
    // What is constant in a recorded pass, such as an exponent, is exact.
    let exact = is_constant && recording != Recording::Off;
    let value = Some(&value).filter(|_| !exact).and_then(perturbed).unwrap_or(value);
    if is_constant || !matches!(recording, Recording::On | Recording::Again) || !value.dtype().is_float() {
        return Var::constant(value);
    }
    let save = |save: &Save<'_>| {
        let (tensor, source) = match *save {
            Save::Input(index) => (inputs[index].value(), Source::Input(index)),
            Save::Output => (&value, Source::Output),
            Save::Tensor(tensor) => (tensor, Source::Constant),
        };
        Saved { tensor: tensor.clone(), version: tensor.version(), source }
    };
    let mut newest = 0;
    let mut nodes = SmallVec::new();
    for input in inputs {
        let tracked = input.tracked();
        newest = newest.max(tracked.map_or(0, |node| node.sequence));
        nodes.push(tracked.cloned());
    }
    let location = AtCaller::location();
    let node = Shared::new_with(|| Node {
        op,
        sequence: next_sequence(newest),
        location,
        place: OpStream::current(value.device()),
        shape: value.layout().dims(),
        dtype: value.dtype(),
        inputs: nodes,
        state: SpinLock::new(State {
            consumed: false,
            outlasts: false,
            saved: if saved.is_empty() { Vec::new() } else { saved.iter().map(save).collect() },
            hooks: None,
        }),
        hooked: AtomicBool::new(false),
        frozen: AtomicBool::new(false),
        rule_owns: std::mem::needs_drop::<F>(),
        rule: Box::new(vjp),
    });
    if recording == Recording::Again {
        made_again(&node);
    }
    Var { value, node: Some(node) }
}

impl Node {
    #[track_caller]
    pub(crate) fn leaf(value: &Tensor) -> Shared<Node> {
        let location = AtCaller::location();
        Shared::new_with(|| Node {
            op: "leaf",
            sequence: next_sequence(0),
            location,
            place: OpStream::current(value.device()),
            shape: value.layout().dims(),
            dtype: value.dtype(),
            inputs: SmallVec::new(),
            state: SpinLock::new(State::default()),
            hooked: AtomicBool::new(false),
            frozen: AtomicBool::new(false),
            rule_owns: false,
            rule: Box::new(no_rule),
        })
    }

    /// An error in the op's gradient.
    #[cold]
    pub(crate) fn failed(&self, error: Error) -> Error {
        error.in_gradient_of(self.location)
    }

    pub(crate) fn is_leaf(&self) -> bool {
        self.inputs.is_empty()
    }

    /// Whether hooks were ever added.
    pub(crate) fn has_hooks(&self) -> bool {
        self.hooked.load(Ordering::Acquire)
    }

    pub(crate) fn add_hook(&self, hook: Hook) -> Result<()> {
        let mut state = self.state.lock();
        if state.consumed {
            return Err(Error::new(ErrorKind::GraphConsumed { op: self.op }));
        }
        let hooks = state.hooks.get_or_insert_default();
        hooks.retain(|hook| !hook.is_removed());
        hooks.push(hook);
        self.hooked.store(true, Ordering::Release);
        Ok(())
    }

    /// The hooks and the saved tensors, which are checked to be unchanged. `consume` takes the tensors out of the node.
    pub(crate) fn claim(&self, consume: bool) -> Result<Claimed> {
        if self.is_leaf() {
            let hooked = self.hooked.load(Ordering::Acquire);
            let hooks = if hooked { self.state.lock().hooks.clone() } else { None };
            return Ok(Claimed { saved: Vec::new(), hooks });
        }
        let mut state = self.state.lock();
        if state.consumed {
            return Err(Error::new(ErrorKind::GraphConsumed { op: self.op }));
        }
        for saved in &state.saved {
            let now = saved.tensor.version();
            if now != saved.version {
                return Err(Error::new(ErrorKind::VersionMismatch {
                    op: self.op,
                    saved: saved.version,
                    now,
                }));
            }
        }
        let consume = consume && !state.outlasts;
        state.consumed = consume;
        let saved = if consume { std::mem::take(&mut state.saved) } else { state.saved.clone() };
        Ok(Claimed { saved, hooks: state.hooks.clone() })
    }

    /// Keeps what the node saved after each pass, for values that several graphs share.
    pub(crate) fn outlast_passes(&self) {
        self.state.lock().outlasts = true;
    }

    /// Returns what a failed pass had taken.
    pub(crate) fn unclaim(&self, Claimed { saved, .. }: Claimed) {
        if !self.is_leaf() {
            let mut state = self.state.lock();
            (state.consumed, state.saved) = (false, saved);
        }
    }

    pub(crate) fn vjp(&self, cx: &Vjp<'_>, grad: &Var) -> Result<Grads> {
        (self.rule)(cx, grad)
    }
}

/// The rule of a node that passes no gradient on.
fn no_rule(_: &Vjp<'_>, _: &Var) -> Result<Grads> {
    Ok(Grads::new())
}

/// Parts of a dropped node. They may hold the last handles of other nodes.
#[expect(dead_code, reason = "it is only dropped")]
enum Remains {
    Input(Shared<Node>),
    Rule(Box<Rule>),
}

thread_local! {
    /// What this thread still has to drop of a graph; `None` otherwise, so nothing leaks. Without a destructor it can be used
    /// until the thread ends.
    static REMAINS: RefCell<ManuallyDrop<Option<SmallVec<[Remains; 4]>>>> =
        const { RefCell::new(ManuallyDrop::new(None)) };
}

/// Drops a graph in a loop; the default drop would recurse once for each op.
impl Drop for Node {
    fn drop(&mut self) {
        // The handle of a leaf may stay.
        let leads_on = |input: &Option<Shared<Node>>| input.as_ref().is_some_and(|input| !input.is_leaf());
        if !self.rule_owns && !self.inputs.iter().any(leads_on) {
            return;
        }
        let outermost = REMAINS.with_borrow_mut(|remains| {
            let outermost = remains.is_none();
            let remains = remains.get_or_insert_default();
            for input in &mut self.inputs {
                remains.extend(input.take().map(Remains::Input));
            }
            if self.rule_owns {
                // No memory is needed for a rule that holds nothing.
                remains.push(Remains::Rule(std::mem::replace(&mut self.rule, Box::new(no_rule))));
            }
            outermost
        });
        if outermost {
            // Ends the loop, also after a panic.
            let _end = OnDrop(|| {
                drop_remains();
                REMAINS.with_borrow_mut(|remains| remains.take());
            });
            drop_remains();
        }
    }
}

/// Drops without a borrow, because what is dropped adds its own remains.
fn drop_remains() {
    let next = || REMAINS.with_borrow_mut(|remains| remains.as_mut().and_then(SmallVec::pop));
    while let Some(remains) = next() {
        drop(remains);
    }
}

/// A recorded op, as [`Var::tape`] lists it.
#[derive(Clone, Debug, PartialEq)]
pub struct TapeEntry {
    /// The op's name; `leaf` for a leaf.
    pub op: &'static str,
    /// The stream on which it ran, and on which its gradient will run.
    pub stream: StreamId,
    /// The shape of its output.
    pub shape: Vec<usize>,
    /// The element type of its output.
    pub dtype: DType,
    /// Its number in the order of recorded ops.
    pub sequence: u64,
    /// The numbers of its inputs, without constants.
    pub inputs: Vec<u64>,
    /// The line that recorded it.
    pub location: &'static Location<'static>,
}

impl Var {
    /// The recorded ops that led to this value, oldest first.
    pub fn tape(&self) -> Vec<TapeEntry> {
        let mut seen = rustc_hash::FxHashSet::default();
        let mut pending: Vec<&Shared<Node>> = self.node.iter().collect();
        let mut entries = Vec::new();
        while let Some(node) = pending.pop() {
            if seen.insert(node.address()) {
                let inputs: Vec<_> = node.inputs.iter().flatten().collect();
                entries.push(TapeEntry {
                    op: node.op,
                    stream: node.place.id(),
                    shape: node.shape.to_vec(),
                    dtype: node.dtype,
                    sequence: node.sequence,
                    inputs: inputs.iter().map(|input| input.sequence).collect(),
                    location: node.location,
                });
                pending.extend(inputs);
            }
        }
        entries.sort_by_key(|entry| entry.sequence);
        entries
    }
}

#[cfg(test)]
#[allow(clippy::expect_used)]
mod tests;
