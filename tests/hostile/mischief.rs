//! Closures and implementations of traits that do what they should not.

use std::any::Any;
use std::sync::atomic::{AtomicU64, Ordering};

use streamgrad::allocator::{self, DeviceMemory};
use streamgrad::device::cuda::Queue;
use streamgrad::device::{Binder, Buffer, Capture, Cpu, Shared, Work};
use streamgrad::kernels::RandomKey;
use streamgrad::models::optim::Kind;
use streamgrad::optim::{LionOptions, SgdOptions};
use streamgrad::tensor::{CustomKernel, EachReplay, KernelLaunch, Rule, RuleStep, RuleValue};
use streamgrad::{Device, Error, Graph, Result, Stream, Tensor};

use crate::world::{Hostile, Random, World};

/// What a closure does that the engine calls.
#[derive(Clone)]
pub(crate) struct Mischief {
    pub(crate) seed: u64,
    tensors: Vec<Tensor>,
    buffer: Shared<Buffer>,
    pub(crate) stream: Stream,
    device: Device,
}

impl Mischief {
    pub(crate) fn of(world: &mut World) -> Mischief {
        Mischief {
            seed: world.random.next(),
            tensors: [(); 3].map(|()| world.tensor()).into(),
            buffer: world.buffer(),
            stream: world.stream(),
            device: world.device.clone(),
        }
    }

    /// Mostly nothing; else panics, calls the engine, or drops things on another thread.
    pub(crate) fn act(&self) -> Result<()> {
        let mut random = Random::new(self.seed);
        let x = &self.tensors[0];
        match random.below(24) {
            0 | 1 => std::panic::panic_any(Hostile),
            2 => return Err(Error::invalid("hostile", "closure", "honest", "hostile")),
            3 => self.device.synchronize()?,
            4 => self.stream.synchronize()?,
            5 => drop(x.to_vec::<f32>()?),
            6 => x.add_scalar_(1.0)?,
            7 => self.buffer.update(|bytes| bytes.fill(3))?,
            8 => drop(self.buffer.download(|bytes| bytes.len())?),
            9 => {
                let tensors = self.tensors.clone();
                std::thread::spawn(move || drop(tensors)).join().unwrap();
            }
            10 => self.stream.upload("hostile", &self.buffer, random.size(64), &[9; 32])?,
            11 => drop(Graph::capture(&self.device, || x.add(x))?.replay()?),
            12 => drop(Capture::suspended(|| x.mul(x))?),
            13 => std::mem::forget(x.clone()),
            14 => drop(self.stream.scope(|| x.exp())?),
            15 => drop(self.device.concurrent((|| x.exp(), || self.tensors[1].exp()))?),
            16 => drop(self.device.trim()),
            17 => drop(self.device.default_stream().record()?.synchronize()),
            _ => {}
        }
        Ok(())
    }
}

/// Work that says another thing each time it is asked.
pub(crate) struct Lies {
    mischief: Mischief,
    asked: AtomicU64,
}

impl Lies {
    pub(crate) fn of(world: &mut World) -> Lies {
        Lies { mischief: Mischief::of(world), asked: AtomicU64::new(0) }
    }

    fn one_in(&self, of: usize) -> bool {
        Random::new(self.mischief.seed ^ self.asked.fetch_add(1, Ordering::Relaxed)).one_in(of)
    }
}

impl Work for Lies {
    fn run(&self, cpu: &Cpu<'_>) {
        if let Some(team) = cpu.team(usize::MAX) {
            team.share(9, &|_| ());
        }
        if let Err(error) = self.mischief.act() {
            cpu.fail(error);
        }
    }

    fn enqueue(&self, _: &Queue<'_>) -> Result<()> {
        self.mischief.act()
    }

    fn bind(&mut self, binder: &mut dyn Binder) {
        let mut random = Random::new(self.mischief.seed);
        for _ in 0..random.below(3) {
            binder.address(std::ptr::without_provenance_mut(random.next() as usize));
            binder.scalar(&mut random.next());
            binder.scalar(&mut RandomKey { seed: 1, op: 2 });
        }
    }

    fn cost(&self) -> usize {
        if self.one_in(2) { usize::MAX } else { 0 }
    }

    fn part(&self) -> Option<Box<dyn Any>> {
        Some(Box::new(7_u8)).filter(|_| self.one_in(2)).map(|part| part as Box<dyn Any>)
    }

    fn is_ready(&self) -> bool {
        self.one_in(2)
    }

    fn may_fail(&self) -> bool {
        self.one_in(2)
    }
}

/// A kernel whose body does mischief, whatever it is given.
pub(crate) struct Custom(pub(crate) Mischief);

impl CustomKernel<2, 1> for Custom {
    type Element = f32;

    fn name(&self) -> &'static str {
        "hostile"
    }

    fn cpu(&self, [x, y]: [&[f32]; 2], [out]: [&mut [f32]; 1]) {
        out.iter_mut().zip(x).zip(y).for_each(|((out, x), y)| *out = x + y);
        let _ = self.0.act();
    }

    fn cuda(&self, _: [usize; 2], _: [usize; 1]) -> Option<KernelLaunch> {
        None
    }
}

/// A rule that panics now and then, with states that it ignores.
struct BadRule;

impl Rule<2, 1> for BadRule {
    const OP: &'static str = "bad_rule";
    const STATES: [&'static str; 2] = ["a", "a"];

    fn step<V: RuleValue>([lr]: [V; 1], _: [V::Flag; 0], p: V, g: V, [a, _]: [V; 2]) -> (V, [V; 2]) {
        (p - lr * g, [a, a])
    }
}

pub(crate) fn any_step(random: &mut Random) -> RuleStep {
    let [lr, momentum] = [random.float(), random.float()];
    let (nesterov, first) = (random.one_in(2), random.one_in(2));
    match random.below(3) {
        0 => RuleStep::new(BadRule, [lr], []),
        1 => LionOptions { lr, betas: (0.9, 0.9), weight_decay: 0.0 }.rule(1).expect("steps count from 1"),
        _ => {
            let options = SgdOptions { lr, momentum, nesterov, ..SgdOptions::default() };
            options.rule(if first { 1 } else { 2 }).expect("steps count from 1")
        }
    }
}

/// Returns steps of any rule.
pub(crate) struct Hook(pub(crate) u64, pub(crate) u32);

impl EachReplay for Hook {
    fn next(&mut self) -> Result<Vec<RuleStep>> {
        let mut random = Random::new(self.0);
        self.0 = random.next();
        if random.one_in(12) {
            std::panic::panic_any(Hostile);
        }
        Ok((0..random.below(3)).map(|_| any_step(&mut random).named(self.1)).collect())
    }

    fn undo(&mut self) {
        self.0 ^= 1;
    }
}

/// A buffer that is not what was asked for, mostly.
pub(crate) fn some_buffer(world: &mut World, bytes: usize) -> Result<Shared<Buffer>> {
    let stream = world.streams[0].clone();
    match world.random.below(10) {
        0 => Ok(world.buffer()),
        1 => allocator::allocate_shared(&stream, bytes.saturating_sub(1)),
        2 => allocator::allocate_shared(&world.streams[3], bytes),
        3 => Err(Error::invalid("hostile", "buffer", "any", "none")),
        4 => std::panic::panic_any(Hostile),
        _ => allocator::allocate_shared(&stream, bytes),
    }
}
