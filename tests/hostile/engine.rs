//! Devices, streams, memory, captured steps, tensors and ranks, with closures and traits that do what they should not.

use std::sync::Arc;
use std::time::Duration;

use streamgrad::allocator::{self, DeviceMemory, PrivatePool};
use streamgrad::comm::{CommOptions, Communicator, Reduce};
use streamgrad::device::{Capture, Executable, Fused, IpcEvent, Plan, Shared, SpinLock, Team, Use};
use streamgrad::kernels::{self, RandomKey, UnaryOp};
use streamgrad::tensor::{RuleStep, custom, each_replay, fresh_slot, optimizer_step};
use streamgrad::{
    DType, Device, Error, Graph, GraphOptions, Graphs, Moment, Order, Result, Tensor, Var, autograd,
    recompute, tensor,
};

use crate::mischief::{Custom, Hook, Lies, Mischief, any_step, some_buffer};
use crate::world::{Changing, Hostile, Random, World};

pub(crate) type Call = fn(&mut World) -> Result<()>;

/// A step of a few random ops.
fn step(world: &mut World, tensors: &[Tensor]) -> Result<Vec<Tensor>> {
    let mut made = tensors.to_vec();
    for _ in 0..1 + world.random.below(6) {
        let (x, y) = (world.random.of(&made).clone(), world.random.of(&made).clone());
        made.push(op(world, &x, &y)?);
    }
    Ok(made)
}

fn op(world: &mut World, x: &Tensor, y: &Tensor) -> Result<Tensor> {
    let random = &mut world.random;
    let (a, b) = (random.axis(x.rank()), random.axis(x.rank()));
    match random.below(30) {
        0 => x.add(y),
        1 => x.mul(y),
        2 => x.matmul(y),
        3 => x.sum(&[a], random.one_in(2)),
        4 => x.transpose(a, b),
        5 => x.narrow(a, random.size(4), random.size(4)),
        6 => x.reshape(&[random.size(6), random.size(6)]),
        7 => x.select(a, random.size(5)),
        8 => x.expand(&[random.below(5), random.below(5), random.below(5)]),
        9 => x.index_select(a, y),
        10 => x.gather(a, y),
        11 => x.scatter_add(a, y, x),
        12 => x.index_add(a, y, x),
        13 => x.cumsum(a),
        14 => x.softmax(a),
        15 => x.dropout(0.5, None),
        16 => x.unary(*random.of(UnaryOp::ALL)),
        17 => Tensor::cat(&[x, y], a),
        18 => Tensor::where_cond(x, y, y),
        19 => x.to_dtype(random.dtype()),
        20 => x.argmax(a, random.one_in(2)),
        21 => x.sum_to(&[random.below(5), random.below(5)]),
        22 => x.pad_narrow(a, random.size(3), random.size(8)),
        23 => x.permute(&[a, b]),
        24 => x.tril(random.next() as i64 >> random.below(64)),
        25 => x.var(&[a], random.float(), false),
        26 => x.add_(y).map(|()| x.clone()),
        27 => x.copy_(y).map(|()| x.clone()),
        28 => x.fill_(random.float()).map(|()| x.clone()),
        _ => x.unsqueeze(a),
    }
}

/// A plan of a few commands of all kinds.
fn plan(world: &mut World) -> Result<(Plan, Vec<usize>)> {
    let device = world.device.clone();
    let capture = Capture::new(&device)?;
    let again = Arc::clone(&capture);
    let tensors = [world.tensor(), world.tensor()];
    let planned = again.scope(|| -> Result<Vec<usize>> {
        let made = step(world, &tensors)?;
        let buffer = world.buffer();
        let lies = Lies::of(world);
        world.stream().launch("hostile", &[Use::write(&buffer), Use::read(made[0].buffer())], lies)?;
        Ok(made.iter().filter_map(|tensor| capture.may_keep(tensor.buffer())).collect())
    });
    if world.random.one_in(10) {
        // Ends it early, and goes on.
        let _ = Arc::clone(&again).finish();
        let _ = again.scope(|| tensors[0].add(&tensors[1]));
    }
    drop(capture);
    let planned = planned?;
    Ok((again.finish()?.0, planned))
}

fn executable(world: &mut World) -> Result<Arc<Executable>> {
    let (mut plan, planned) = plan(world)?;
    if world.random.one_in(3) {
        let count = world.random.below(3);
        let kept = (0..count).map(|_| {
            let memory =
                if world.random.one_in(4) { world.random.size(9) } else { *world.random.of(&planned) };
            let bytes = world.random.below(2000);
            Ok((memory, some_buffer(world, bytes)?))
        });
        let kept = if planned.is_empty() { Vec::new() } else { kept.collect::<Result<Vec<_>>>()? };
        plan.keep(kept)?;
    }
    if world.random.one_in(3) {
        let commands: Vec<usize> =
            (0..world.random.below(3)).map(|_| world.random.below(plan.len() + 1)).collect();
        let stream = world.stream();
        plan.settle(&commands, &stream, |bytes| some_buffer(world, bytes))?;
    }
    let order = *world.random.of(&[Order::Data, Order::Streams]);
    if world.random.one_in(3) {
        let stream = world.stream();
        kernels::fuse(&mut plan, order, &stream, |bytes| some_buffer(world, bytes))?;
    }
    if plan.len() > 1 && world.random.one_in(4) {
        let mut groups = plan.groups(order)?;
        let [a, b] = [(); 2].map(|()| world.random.below(plan.len()));
        if groups.may_join(a, b) {
            groups.join(a, b);
            let lies = Lies::of(world);
            let fused = Fused { op: "hostile", uses: plan.uses(a).to_vec(), work: Box::new(lies) };
            plan.fuse(&groups, vec![fused]);
        }
    }
    let options =
        GraphOptions { order, max_bytes: Some(1 << 12).filter(|_| world.random.one_in(2)), fuse: false };
    let made = plan.instantiate(options, |bytes| some_buffer(world, bytes))?;
    Ok(Arc::new(made))
}

pub(crate) const CALLS: &[(&str, Call)] = &[
    ("a tensor", World::make),
    ("an op", |w| {
        let (x, y) = (w.tensor(), w.tensor());
        let made = op(w, &x, &y)?;
        w.keep(made);
        Ok(())
    }),
    ("an op on a stream", |w| {
        let (x, y, stream) = (w.tensor(), w.tensor(), w.stream());
        let made = stream.scope(|| op(w, &x, &y))?;
        w.keep(made);
        Ok(())
    }),
    ("values", |w| {
        let x = w.tensor();
        match w.random.below(5) {
            0 => x.to_vec::<f32>().map(drop),
            1 => x.to_vec::<bool>().map(drop),
            2 => x.item::<i64>().map(drop),
            3 => x.to_host_async()?.to_vec::<u8>().map(drop),
            _ => x.to_device(&w.other).map(drop),
        }
    }),
    ("a host read", |w| {
        let (buffer, mischief) = (w.buffer(), Mischief::of(w));
        match w.random.below(2) {
            0 => buffer.download(|_| mischief.act())?,
            _ => buffer.peek(|_| mischief.act()).unwrap_or(Ok(())),
        }
    }),
    ("a host write", |w| {
        let (buffer, mischief) = (w.buffer(), Mischief::of(w));
        buffer.update(|bytes| {
            let before = bytes.to_vec();
            let done = mischief.act();
            assert_eq!(bytes, before, "somebody else wrote");
            bytes.reverse();
            done
        })?
    }),
    ("tensors of closures", |w| {
        let (x, mischief) = (w.tensor(), Mischief::of(w));
        match w.random.below(2) {
            0 => x.update_(|elements: &mut [f32]| {
                elements.fill(0.5);
                mischief.act()
            })?,
            _ => {
                let shape = [w.random.size(5), w.random.below(5)];
                Tensor::from_fill(&shape, &w.device, |_: &mut [i64]| mischief.act()).map(drop)
            }
        }
    }),
    ("a function of the host", |w| {
        let (buffer, other, mischief) = (w.buffer(), w.buffer(), Mischief::of(w));
        let uses = [Use::write(&buffer), Use::read(&other), Use::read(&buffer)];
        w.stream().launch_host("hostile", &uses[..w.random.below(4)], move || drop(mischief.act()))
    }),
    ("work that lies", |w| {
        let (buffer, other, lies) = (w.buffer(), w.buffer(), Lies::of(w));
        let uses = [Use::read(&buffer), Use::write(&other)];
        w.stream().launch("hostile", &uses, lies)
    }),
    ("copies", |w| {
        let (to, from, stream) = (w.buffer(), w.buffer(), w.stream());
        let [at, start, len] = [w.random.size(100), w.random.size(100), w.random.below(100)];
        match w.random.below(2) {
            0 => stream.upload("hostile", &to, at, &vec![1; len]),
            _ => stream.copy_across("hostile", &to, at, &from, start..start.saturating_add(len)),
        }
    }),
    ("a custom kernel", |w| {
        let (x, y, mischief) = (w.tensor(), w.tensor(), Mischief::of(w));
        let shape = [w.random.size(5), w.random.below(5)];
        let [made] = custom(Custom(mischief), [&x, &y], [&shape])?;
        w.keep(made);
        Ok(())
    }),
    ("a captured step", |w| {
        let (tensors, device) = ([w.tensor(), w.tensor()], w.device.clone());
        let (mischief, slot, seed) = (Mischief::of(w), fresh_slot(), w.random.next());
        let (param, grad) =
            (Tensor::ones(&[4], DType::F32, &device)?, Tensor::ones(&[4], DType::F32, &device)?);
        let states = [param.zeros_like()?, param.zeros_like()?];
        let graph = Graph::capture(&device, || {
            let made = step(w, &tensors)?;
            mischief.act()?;
            if w.random.one_in(2) {
                each_replay(Hook(seed, slot));
                let step = any_step(&mut w.random).named(slot);
                let states = &states[..step.states().len()];
                optimizer_step(&[tensor::Update { param: &param, grad: &grad, master: None, states, step }])?;
            }
            Ok(Changing(made, seed))
        })?;
        if w.graphs.len() > 4 {
            w.graphs.remove(0);
        }
        w.graphs.push(graph);
        Ok(())
    }),
    ("a replay", |w| {
        if w.graphs.is_empty() {
            return Ok(());
        }
        let (at, stream, x, y) = (w.random.below(w.graphs.len()), w.stream(), w.tensor(), w.tensor());
        let graph = &w.graphs[at];
        if w.random.one_in(3) {
            let _ = graph.input(&x).and_then(|input| input.set(&y));
        }
        if w.random.one_in(3) {
            let edge = (w.random.below(9), w.random.below(9));
            graph.executable().ignore(Some(edge).filter(|_| w.random.one_in(2)));
            graph.executable().shuffle(Some(w.random.next()).filter(|_| w.random.one_in(2)));
        }
        let made = stream.scope(|| graph.replay())?;
        made.0.into_iter().for_each(|tensor| w.keep(tensor));
        Ok(())
    }),
    ("steps of batches", |w| {
        let (device, seed) = (w.device.clone(), w.random.next());
        let mut graphs = Graphs::new(&device, |batch: &Changing| step(w, &batch.0));
        let batch = [Tensor::ones(&[4], DType::F32, &device)?, Tensor::ones(&[3, 2], DType::F32, &device)?];
        (0..3).try_for_each(|at| graphs.run(&Changing(batch.to_vec(), seed + at)).map(drop))
    }),
    ("an executable", |w| {
        let executable = executable(w)?;
        for _ in 0..w.random.below(4) {
            let mischief = Mischief::of(w);
            let (old, bytes) = (w.buffer(), w.random.below(1 << 14));
            let replaced: Vec<_> = match w.random.one_in(3) {
                true => vec![(old.clone(), some_buffer(w, bytes)?), (w.buffer(), some_buffer(w, bytes)?)],
                false => Vec::new(),
            };
            let (own, stream) = (executable.clone(), w.stream());
            let prepare = move |kept: &mut streamgrad::device::Kept<'_>| {
                let mut random = Random::new(mischief.seed);
                for _ in 0..4 {
                    kept.scalars(random.size(9), &mut |value| {
                        if let Some(step) = value.downcast_mut::<RuleStep>() {
                            *step = any_step(&mut random);
                        } else if let Some(key) = value.downcast_mut::<RandomKey>() {
                            key.seed = random.next();
                        }
                        random.one_in(2)
                    });
                }
                let _ = own.replay(&mischief.stream, &[], |_| ());
                let _ = mischief.act();
            };
            let _ = executable.replay(&stream, &replaced, prepare);
        }
        Ok(())
    }),
    ("teams", |w| {
        let (mischief, helpers) = (Mischief::of(w), w.random.below(3));
        let team = Team::new("hostile", helpers)?;
        team.run(&|at| {
            if at == 0 {
                let _ = team.run(&|_| ());
                team.share(2, &|_| drop(mischief.act()));
            }
            let _ = mischief.act();
        })?;
        drop(Team::new("hostile", usize::MAX));
        Ok(())
    }),
    ("branches", |w| {
        let (one, other, device) = (Mischief::of(w), Mischief::of(w), w.device.clone());
        device.concurrent((|| one.act(), || other.act()))?;
        device.range("hostile", || one.act())
    }),
    ("memory", |w| {
        let device = w.device.clone();
        match w.random.below(8) {
            0 => drop(device.trim()),
            1 => device.reserve(w.random.size(1 << 20))?,
            2 => device.record_memory_history(w.random.below(9)),
            3 => drop(device.memory_report().map(|report| (report.to_json(), report.to_memory_viz()))),
            4 => drop(device.memory_snapshot()),
            5 => {
                let stream = w.stream();
                let pool = PrivatePool::new(&device)?;
                let serving = pool.serve(&stream)?;
                let bytes = w.random.size(4096);
                let taken = allocator::allocate_shared(&stream, bytes);
                if w.random.one_in(2) {
                    std::mem::forget(serving);
                }
                w.buffers[2] = taken?;
            }
            6 => {
                let stream = w.stream();
                drop(allocator::allocate(&stream, w.random.size(1 << 16))?);
            }
            _ => drop(device.allocator_config()),
        }
        Ok(())
    }),
    ("waits", |w| {
        let (one, other) = (w.stream(), w.stream());
        let now = other.now();
        let moment = Moment { tick: if w.random.one_in(2) { now.tick } else { w.random.next() }, ..now };
        let _ = (one.covers(moment), w.device.reached(moment), one.branches(w.random.below(3))?.len());
        one.wait_for(&[moment])?;
        let event = other.record()?;
        one.wait(&event)?;
        let _ = (event.is_complete(), event.elapsed_ms(&one.record()?));
        Ok(())
    }),
    ("a held stream", |w| {
        let stream = w.streams[1].clone();
        let hold = stream.hold();
        let (x, y) = (w.tensor(), w.tensor());
        let made = stream.scope(|| op(w, &x, &y));
        drop(hold);
        made.map(drop)
    }),
    ("recordings", |w| {
        match w.random.below(4) {
            0 => w.device.start_recording(),
            1 => drop(w.device.stop_recording()),
            2 => w.device.start_audit(),
            _ => drop(w.device.stop_audit().hazards()),
        }
        Ok(())
    }),
    ("drops elsewhere", |w| {
        let at = w.random.below(w.tensors.len());
        let (tensor, graph) = (w.tensors.swap_remove(at), w.graphs.pop());
        w.make()?;
        let dropped = std::thread::spawn(move || drop((tensor, graph)));
        w.make()?;
        dropped.join().map_err(|_| Error::invalid("hostile", "drop", "quiet", "panic"))
    }),
    ("gradients", |w| {
        let (x, y, mischief) = (w.tensor(), w.tensor(), Mischief::of(w));
        let (a, b) = (Var::leaf(x.clone()), Var::leaf(y.clone()));
        let value = op(w, &x, &y)?;
        let wrong = w.tensor();
        let made = autograd::record("hostile", &[&a, &b], &[], value, move |_, _| {
            mischief.act()?;
            Ok([Some(Var::constant(wrong.clone())), None].into_iter().collect())
        });
        let mischief = Mischief::of(w);
        let again = recompute(
            move |x| {
                mischief.act()?;
                if mischief.seed.is_multiple_of(2) { x.square() } else { x.exp() }
            },
            &made,
        )?;
        again.sum(&[], false)?.backward().map(drop)
    }),
    ("handles", |w| {
        let bytes: Vec<u8> =
            b"strgipc1".iter().copied().chain((0..w.random.below(200)).map(|k| k as u8)).collect();
        let _ = IpcEvent::from_ipc_handle(&bytes, &w.device);
        let _ = streamgrad::device::shared_copy("hostile", &bytes);
        let buffer = w.buffer();
        let _ = w.stream().copy_shared("hostile", &buffer, &bytes);
        let range = w.random.size(9)..w.random.size(9);
        w.stream().share_copy("hostile", &buffer, range, &[]).map(drop)
    }),
    ("locks", |w| {
        let lock = SpinLock::new(vec![w.random.next()]);
        let left = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            lock.lock().push(1);
            let _guard = lock.lock();
            std::panic::panic_any(Hostile);
        }));
        assert!(left.is_err());
        lock.lock().clear();
        let shared = Shared::new(w.tensor());
        let other = shared.clone();
        std::thread::spawn(move || drop(other)).join().unwrap();
        assert!(shared.is_unique());
        Ok(())
    }),
    ("ranks", |w| {
        if !w.random.one_in(16) {
            return Ok(());
        }
        let devices = [(); 2].map(|()| Device::cpu_with(Default::default()));
        let options = CommOptions { timeout: Duration::from_millis(60), ..CommOptions::default() };
        let ranks = Communicator::threads_with(&devices, options)?;
        let seeds = [w.random.next(), if w.random.one_in(2) { 0 } else { w.random.next() }];
        let threads: Vec<_> = ranks
            .into_iter()
            .zip(seeds)
            .map(|(comm, seed)| std::thread::spawn(move || rank(comm, seed)))
            .collect();
        // A rank that panics has left its communicator.
        let _: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
        Ok(())
    }),
    ("all errors", |w| {
        w.settle();
        w.device.synchronize()
    }),
];

/// Collectives of wrong shapes, on overlapping views, or another number of them than the other rank has; leaves by a panic.
fn rank(comm: Communicator, seed: u64) {
    let mut random = Random::new(seed);
    let stream = comm.device().default_stream();
    let x = Tensor::ones(&[1 << 12], DType::F32, comm.device()).unwrap();
    for _ in 0..4 {
        let len = 2 * (1 + random.below(2000));
        let (part, other) = (x.narrow(0, 0, len).unwrap(), x.narrow(0, random.below(90), len).unwrap());
        let _ = match random.below(5) {
            0 => comm.all_reduce(&stream, part.view(), part.view(), Reduce::Sum),
            1 => comm.all_gather(&stream, part.view(), other.view()),
            2 => comm.all_to_all(&stream, part.view(), other.view()),
            3 => comm.broadcast(&stream, part.view(), other.view(), random.below(3)),
            _ => comm.send(&stream, part.view(), random.below(3)),
        };
        if random.one_in(6) {
            std::panic::panic_any(Hostile);
        }
    }
    let _ = stream.synchronize();
}
