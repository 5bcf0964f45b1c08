//! Captured steps: a program's commands, kept as a graph of the data and replayed.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use device::{
    AtCaller, Buffer, Capture, Device, Error, ErrorKind, Executable, GraphOptions, Kept, Plan, PlanReport,
    PlannedCommand, Result, Shared, Stream,
};
use kernels::{RandomKey, RuleStep};
use parking_lot::Mutex;

use crate::check::has_shape;
use crate::random::{Forked, skip_keys, with_generator_after};
use crate::{Generator, Tensor};

/// What a captured step takes or gives: tensors, in a form that can be filled with others.
pub trait Tensors: Sized {
    /// The same with what `f` returns in place of each tensor. Visits the same tensors in the same order each time.
    ///
    /// # Errors
    /// Those of `f`.
    fn rebuild(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Self>;

    /// The same with the same tensors, and these tensors in their order.
    ///
    /// # Errors
    /// Those of [`rebuild`](Self::rebuild) itself.
    fn shared(&self) -> Result<(Self, Vec<Tensor>)> {
        let mut tensors = Vec::new();
        let same = self.rebuild(&mut |tensor| {
            tensors.push(tensor.clone());
            Ok(tensor.clone())
        })?;
        Ok((same, tensors))
    }

    /// Tells `f` what a step may depend on beside the tensors, such as how many there are: another one asks for another
    /// capture.
    fn form(&self, f: &mut dyn FnMut(u64)) {
        let _ = f;
    }

    /// Shows `f` the seeds of random ops, which may differ from replay to replay.
    fn seeds(&mut self, f: &mut dyn FnMut(&mut u64)) {
        let _ = f;
    }
}

/// A step that was captured: its commands run again at each [`replay`](Graph::replay), in the order that their data asks for,
/// as one command of a stream. On a CUDA device that is a graph of the driver, which a host launches in microseconds; on a CPU
/// the device's threads take commands that may run.
///
/// A replay gives, bit for bit, what running the step would give: losses, parameters, an optimizer's state, random numbers.
/// What the step reads is read anew by each replay, so a batch is changed by writing into its tensors
/// ([`Graph::input`]). What a replay returns is a value like any other, which later replays leave alone.
///
/// ```
/// use tensor::{Device, Graph, Tensor};
/// # fn main() -> tensor::Result<()> {
/// let dev = Device::cpu();
/// let x = Tensor::from_slice(&[1.0f32, 2.0], &[2], &dev)?;
/// let total = Tensor::zeros(&[2], tensor::DType::F32, &dev)?;
/// let graph = Graph::capture(&dev, || {
///     total.add_(&x)?;
///     total.mul(&x)
/// })?;
/// assert_eq!(total.to_vec::<f32>()?, [0.0, 0.0]); // nothing has run yet
/// let first = graph.replay()?;
/// graph.input(&x)?.set(&Tensor::from_slice(&[5.0f32, 5.0], &[2], &dev)?)?;
/// assert_eq!(graph.replay()?.to_vec::<f32>()?, [30.0, 35.0]);
/// assert_eq!(first.to_vec::<f32>()?, [1.0, 4.0]);
/// # Ok(())
/// # }
/// ```
///
/// # What does not change between replays
/// Control flow, shapes, types, numbers of the host (`mul_scalar(0.5)`), what the host uploads within the step, and the modes
/// that the step is under, such as autograd's `autocast` and `no_grad`: they are what they were at the capture. What changes: the
/// content of tensors, random numbers of the thread's generator, and the learning rate and step count of optimizers. A step that
/// reads a value on the host, waits for the device, or keeps a tensor beyond its end is refused; the chapter on captured steps in
/// docs/streams.md lists each case. [`Graphs`](crate::Graphs) captures a step anew where a batch has other shapes.
///
/// A graph holds the tensors that its step uses, and memory for those that it makes, until it is dropped.
pub struct Graph<R = ()> {
    executable: Arc<Executable>,
    device: Device,
    /// The step's result, without the tensors that each replay makes.
    template: R,
    state: Mutex<State>,
}

/// What changes from replay to replay.
struct State {
    /// The results' tensors that replays make.
    outputs: Vec<Tensor>,
    /// Which output takes the place of which tensor of the template, by the address of that one's buffer.
    places: HashMap<usize, usize>,
    /// These tensors, so that their addresses stay theirs.
    _stand_ins: Vec<Tensor>,
    random: Arc<Random>,
    hooks: Vec<Box<dyn EachReplay>>,
    /// The addresses of the buffers that were there before the step and that it uses.
    inputs: HashSet<usize>,
}

/// What is worked out on the host before each replay, such as an optimizer's next step.
pub trait EachReplay: Send {
    /// Called once, when the capture has ended: pairs of [names](RuleStep::named) of steps, of which the second takes the place of
    /// the first from now on. Steps with one name share a launch.
    fn merge_slots(&mut self) -> Vec<(u32, u32)> {
        Vec::new()
    }

    /// The next values of steps by their [names](RuleStep::named).
    ///
    /// # Errors
    /// What keeps the replay from running.
    fn next(&mut self) -> Result<Vec<RuleStep>>;

    /// The replay of the last [`next`](Self::next) did not run.
    fn undo(&mut self);
}

/// What was asked of the hooks for a replay, which is undone unless that runs.
struct Asked<'a> {
    hooks: &'a mut [Box<dyn EachReplay>],
    count: usize,
}

impl Asked<'_> {
    /// The next values of all hooks' steps, by their names.
    fn next(&mut self) -> Result<HashMap<u32, RuleStep>> {
        let mut steps = HashMap::new();
        while let Some(hook) = self.hooks.get_mut(self.count) {
            steps.extend(hook.next()?.into_iter().map(|step| (step.slot(), step)));
            self.count += 1;
        }
        Ok(steps)
    }

    /// The replay was given to the device.
    fn keep(mut self) {
        self.count = 0;
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        self.hooks[..self.count].iter_mut().rev().for_each(|hook| hook.undo());
    }
}

/// Has each replay of the step that this thread captures ask `hook` first.
pub fn each_replay(hook: impl EachReplay + 'static) {
    let hook: Box<dyn EachReplay> = Box::new(hook);
    Capture::attach(hook);
}

/// A name for steps of an optimizer within a captured step, used once.
pub fn fresh_slot() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A seed that no user has, to stand for one that a replay gets: a counter, mixed.
pub(crate) fn stand_in() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0x5eed);
    let counted = Generator::new(NEXT.fetch_add(1, Ordering::Relaxed));
    Capture::suspended(|| counted.fork(0x6a09_e667_f3bc_c908)).seed
}

/// The generators that stand-ins have in a replay.
type Roots = Vec<(u64, Generator)>;

/// How the keys of a captured step follow from the generator of the thread that replays it.
struct Random {
    /// Stands for the seed of that generator while the step is captured.
    root: u64,
    /// The generators that were forked from it, by the seeds that stand for theirs.
    forks: HashMap<u64, Forked>,
    /// How many keys the step draws from the root.
    draws: u64,
    changing: Changing,
}

impl Random {
    /// Sets the keys and the optimizer steps of a replay in its commands; `steps` are by slot.
    fn prepare(&self, kept: &mut Kept<'_>, now: &Roots, steps: &HashMap<u32, RuleStep>) {
        for (command, captured) in &self.changing.keys {
            let mut captured = captured.iter();
            kept.scalars(*command, &mut |value| match (value.downcast_mut::<RandomKey>(), captured.next()) {
                (Some(key), Some(&captured)) => {
                    let next = self.key(captured, now);
                    std::mem::replace(key, next) != next
                }
                _ => false,
            });
        }
        for command in &self.changing.steps {
            kept.scalars(*command, &mut |value| {
                let step = value.downcast_mut::<RuleStep>().filter(|step| step.slot() > 0);
                let changes = step.and_then(|step| {
                    let next = steps.get(&step.slot())?;
                    Some(std::mem::replace(step, *next).numbers() != next.numbers())
                });
                changes.unwrap_or(false)
            });
        }
    }

    /// The generator that `captured` stands for where stand-ins have those of `now`.
    fn generator(&self, captured: Generator, now: &Roots) -> Generator {
        if let Some((_, root)) = now.iter().find(|(seed, _)| *seed == captured.seed) {
            return root.skip(captured.op);
        }
        match self.forks.get(&captured.seed) {
            Some(forked) => self.generator(forked.parent, now).fork(forked.index).skip(captured.op),
            None => captured,
        }
    }

    fn key(&self, captured: RandomKey, now: &Roots) -> RandomKey {
        self.generator(Generator::at(captured), now).key()
    }

    /// That each step is of the rule that the step of its name was captured with.
    fn expect_rules(&self, steps: &HashMap<u32, RuleStep>) -> Result<()> {
        let named = self.changing.rules.iter().filter(|rule| rule.slot() > 0);
        let pairs = named.filter_map(|rule| Some((rule, steps.get(&rule.slot())?)));
        let mut others = pairs.filter(|(rule, step)| !rule.same_rule(step)).map(|(_, step)| step);
        match others.next() {
            Some(step) => {
                let value = format_args!("a step of {}", step.op());
                Err(Error::invalid("replay", "next", "steps of the rules that were captured", value))
            }
            None => Ok(()),
        }
    }
}

#[derive::located]
impl<R: Tensors> Graph<R> {
    /// Captures `step` on `device`, whatever streams and lanes it uses, and runs none of it.
    ///
    /// # Errors
    /// Those of `step`, which `Captured` is among; `OutOfMemory`; what the driver refuses.
    pub fn capture(device: &Device, step: impl FnOnce() -> Result<R>) -> Result<Graph<R>> {
        Graph::capture_with(device, GraphOptions::default(), step)
    }

    /// [`capture`](Self::capture) with options.
    ///
    /// # Errors
    /// As for [`capture`](Self::capture).
    pub fn capture_with(
        device: &Device,
        options: GraphOptions,
        step: impl FnOnce() -> Result<R>,
    ) -> Result<Graph<R>> {
        let capture = Capture::new(device)?;
        let (mut outputs, mut stand_ins, mut kept) = (Vec::new(), Vec::new(), Vec::new());
        let root = Generator::new(stand_in());
        let (captured, end) = with_generator_after(root, || {
            capture.scope(|| {
                let result = AtCaller::user(step)?;
                let mut made = Vec::new();
                // Holds nothing of the step, so that what is held beyond it is seen.
                let template = result.rebuild(&mut |tensor| {
                    if !tensor.buffer().is_planned() {
                        return Ok(tensor.clone());
                    }
                    outputs.push(Capture::suspended(|| fresh_like(tensor))?);
                    made.push(tensor.clone());
                    let stand_in = Capture::suspended(|| Tensor::empty(&[0], tensor.dtype(), device))?;
                    stand_ins.push(stand_in.clone());
                    Ok(stand_in)
                })?;
                for ((own, tensor), memory) in outputs.iter().zip(&made).zip(memories(&made, &capture)) {
                    // The step makes it there, or copies it.
                    match memory {
                        Some(memory) => kept.push((memory, own.storage.clone())),
                        None => own.copy_(tensor)?,
                    }
                }
                Ok(template)
            })
        });
        let template = captured?;
        if end.seed != root.seed {
            return Err(Error::new(ErrorKind::Captured {
                op: "seed",
                reason: "each replay would begin with the same random numbers; seed before the step".into(),
            }));
        }
        let (mut plan, attached) = capture.finish()?;
        plan.keep(kept)?;
        if options.fuse {
            Stream::with_current(device, |stream| {
                kernels::fuse(&mut plan, options.order, stream, |bytes| {
                    allocator::allocate_shared(stream, bytes)
                })
            })?;
        }
        let (mut hooks, mut forks) = (Vec::new(), HashMap::new());
        for value in attached {
            match value.downcast::<Box<dyn EachReplay>>() {
                Ok(hook) => hooks.push(*hook),
                Err(other) => {
                    forks.extend(other.downcast().map(|forked: Box<Forked>| (forked.child, *forked)))
                }
            }
        }
        let slots = hooks.iter_mut().flat_map(|hook| hook.merge_slots()).collect();
        let changing = changing(&mut plan, &slots);
        let own: HashSet<usize> = outputs.iter().map(buffer_address).collect();
        let found = plan.found().map(|buffer| std::ptr::from_ref(buffer).addr());
        let inputs = found.filter(|found| !own.contains(found)).collect();
        let draws = end.op - root.op;
        let random = Arc::new(Random { root: root.seed, forks, draws, changing });
        let executable = Stream::with_current(device, |stream| {
            plan.instantiate(options, |bytes| allocator::allocate_shared(stream, bytes))
        })?;
        let address = |(at, stand_in): (usize, &Tensor)| (buffer_address(stand_in), at);
        let places = stand_ins.iter().enumerate().map(address).collect();
        let state = Mutex::new(State { outputs, places, _stand_ins: stand_ins, random, hooks, inputs });
        Ok(Graph { executable: Arc::new(executable), device: device.clone(), template, state })
    }

    /// Runs the step on the current stream and gives its result.
    ///
    /// Asynchronous, and ordered like any command by what the step reads and writes: a replay comes after the last use of the
    /// batch that it reads, and what is launched after it sees the parameters that it wrote.
    ///
    /// # Errors
    /// As for [`Stream::launch`]; `Captured` within another capture; what an optimizer's next step returns. Nothing
    /// has run then.
    pub fn replay(&self) -> Result<R> {
        self.replay_seeded(Vec::new())
    }

    /// [`replay`](Self::replay) with these generators for [stand-ins](stand_in).
    pub(crate) fn replay_seeded(&self, mut now: Roots) -> Result<R> {
        Capture::none("replay")?;
        let mut state = self.state.lock();
        let State { outputs, places, random, hooks, .. } = &mut *state;
        let mut asked = Asked { hooks, count: 0 };
        let steps = asked.next()?;
        random.expect_rules(&steps)?;
        // Results that somebody holds, besides the graph and its executable, are left alone.
        let mut fresh = Vec::new();
        for (at, output) in outputs.iter().enumerate().filter(|(_, output)| output.storage.owners() > 2) {
            fresh.push((at, fresh_like(output)?));
        }
        let pair = |(at, fresh): &(usize, Tensor)| (outputs[*at].storage.clone(), fresh.storage.clone());
        let replaced: Vec<(Shared<Buffer>, Shared<Buffer>)> = fresh.iter().map(pair).collect();
        now.push((random.root, Generator::current()));
        let (keys, draws) = (Arc::clone(random), random.draws);
        Stream::with_current(&self.device, |stream| {
            let prepare = move |kept: &mut Kept<'_>| keys.prepare(kept, &now, &steps);
            self.executable.replay(stream, &replaced, prepare)
        })?;
        asked.keep();
        fresh.into_iter().for_each(|(at, fresh)| outputs[at] = fresh);
        skip_keys(draws);
        self.template.rebuild(&mut |tensor| {
            Ok(match places.get(&buffer_address(tensor)) {
                Some(&output) => outputs[output].clone(),
                None => tensor.clone(),
            })
        })
    }

    /// A tensor that the step uses, to be given other values before a replay. A view counts as the tensor that it is of.
    ///
    /// # Errors
    /// `InvalidArgument` if the step does not use it.
    pub fn input(&self, tensor: &Tensor) -> Result<Input> {
        let used = buffer_address(tensor);
        let value = format_args!("one of shape {:?} that it does not use", tensor.shape());
        let is_valid = self.state.lock().inputs.contains(&used);
        Error::require(is_valid, "Graph::input", "tensor", "a tensor that the step uses", value)?;
        Ok(Input(tensor.clone()))
    }

    /// The commands, in the program's order.
    pub fn commands(&self) -> Vec<PlannedCommand> {
        self.executable.commands()
    }

    /// What replays run.
    pub fn executable(&self) -> &Executable {
        &self.executable
    }

    /// Commands, edges, the critical path, memory, and the gain that the data allow.
    pub fn report(&self) -> PlanReport {
        self.executable.report()
    }
}

/// What tells the buffer of a tensor apart while it lives.
fn buffer_address(tensor: &Tensor) -> usize {
    std::ptr::from_ref(tensor.buffer()).addr()
}

/// For each result that the step made, the number of its memory, where that is to be made in a buffer of its own: it is the only
/// result of that memory, and all of it.
fn memories(made: &[Tensor], capture: &Capture) -> Vec<Option<usize>> {
    let mut results: HashMap<usize, usize> = HashMap::new();
    made.iter().for_each(|tensor| *results.entry(buffer_address(tensor)).or_default() += 1);
    let is_whole = |tensor: &Tensor| {
        let bytes = tensor.layout.elements() * tensor.dtype.size_bytes();
        tensor.layout.is_dense() && bytes > 0 && bytes == tensor.buffer().len_bytes()
    };
    let is_alone = |tensor: &Tensor| results[&buffer_address(tensor)] == 1;
    let memory =
        |tensor: &Tensor| capture.may_keep(tensor.buffer()).filter(|_| is_whole(tensor) && is_alone(tensor));
    made.iter().map(memory).collect()
}

/// A tensor with room for such elements, in the same order if they lie without gaps.
fn fresh_like(tensor: &Tensor) -> Result<Tensor> {
    let fresh = Tensor::empty(tensor.shape(), tensor.dtype(), tensor.device())?;
    Ok(match tensor.layout.is_dense() && tensor.layout.offset() == 0 {
        true => Tensor { layout: tensor.layout.clone(), ..fresh },
        false => fresh,
    })
}

/// What changes from replay to replay, as it was captured.
#[derive(Default)]
struct Changing {
    /// The keys of each command that has some.
    keys: Vec<(usize, Vec<RandomKey>)>,
    /// The commands with steps of optimizers, and these steps.
    steps: Vec<usize>,
    rules: Vec<RuleStep>,
}

/// What of a plan changes; steps of optimizers get the names of `slots`.
fn changing(plan: &mut Plan, slots: &HashMap<u32, u32>) -> Changing {
    let mut found = Changing::default();
    plan.scalars(&mut |command, value| {
        if let Some(&key) = value.downcast_ref::<RandomKey>() {
            match found.keys.last_mut().filter(|(last, _)| *last == command) {
                Some((_, keys)) => keys.push(key),
                None => found.keys.push((command, vec![key])),
            }
        } else if let Some(step) = value.downcast_mut::<RuleStep>() {
            if let Some(&slot) = slots.get(&step.slot()) {
                *step = step.named(slot);
            }
            found.rules.push(*step);
            if found.steps.last() != Some(&command) {
                found.steps.push(command);
            }
        }
    });
    found
}

/// A tensor that a captured step reads.
#[derive(Clone, Debug)]
pub struct Input(Tensor);

#[derive::located]
impl Input {
    /// Copies `value` into it, ordered after the replays so far and before the next.
    ///
    /// # Errors
    /// `ShapeMismatch` for another shape than the captured one, which takes a capture of its own; those of
    /// [`Tensor::copy_`].
    pub fn set(&self, value: &Tensor) -> Result<()> {
        has_shape("Graph::input", self.0.shape(), value, "value")?;
        self.0.copy_(value)
    }
}

impl<R> fmt::Debug for Graph<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Graph")
            .field("device", &self.device)
            .field("report", &self.executable.report())
            .finish()
    }
}

impl Tensors for () {
    fn rebuild(&self, _: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<()> {
        Ok(())
    }
}

impl Tensors for Tensor {
    fn rebuild(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
        f(self)
    }
}

macro_rules! collections {
    ($([$($generics:tt)+] $collection:ty, |$values:ident, $f:ident| $rebuilt:expr;)+) => {
        $(impl<$($generics)+> Tensors for $collection {
            fn rebuild(&self, $f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Self> {
                let $values = self;
                $rebuilt
            }

            fn form(&self, f: &mut dyn FnMut(u64)) {
                f(self.iter().count() as u64);
                self.iter().for_each(|value| value.form(f));
            }

            fn seeds(&mut self, f: &mut dyn FnMut(&mut u64)) {
                self.iter_mut().for_each(|value| value.seeds(f));
            }
        })+
    };
}

collections! {
    [T: Tensors] Option<T>, |values, f| values.as_ref().map(|value| value.rebuild(f)).transpose();
    [T: Tensors] Vec<T>, |values, f| values.iter().map(|value| value.rebuild(f)).collect();
    [T: Tensors, const N: usize] [T; N], |values, f| {
        let values: Vec<T> = values.iter().map(|value| value.rebuild(f)).collect::<Result<_>>()?;
        Ok(values.try_into().unwrap_or_else(|_| unreachable!("one for each")))
    };
}

macro_rules! tuples {
    ($($(($part:ident $at:tt))+;)+) => {
        $(impl<$($part: Tensors),+> Tensors for ($($part,)+) {
            fn rebuild(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Self> {
                Ok(($(self.$at.rebuild(f)?,)+))
            }

            fn form(&self, f: &mut dyn FnMut(u64)) {
                $(self.$at.form(f);)+
            }

            fn seeds(&mut self, f: &mut dyn FnMut(&mut u64)) {
                $(self.$at.seeds(f);)+
            }
        })+
    };
}

tuples! {
    (A 0) (B 1);
    (A 0) (B 1) (C 2);
}
