//! The forum's model on ranks: its batches one after the other and at once, and how much of the communication that hides.

use std::thread;
use std::time::{Duration, Instant};

use autograd::{ConcurrentBatches, Lanes, Var};
use comm::{CommModel, CommOptions, Communicator, DataParallel};
use device::{Device, Error, ErrorKind, Panicked, Result};
use tensor::{DType, RandomKey, Tensor};

use models::{Module, Optimizer, Sgd, mse};
use profile::{Profile, ProfileOptions, Quantiles, median};

use crate::forum::{Forum, messages};

/// Batches of a rank's step.
const BATCHES: usize = 2;
/// Steps of a schedule before another one has its turn.
const BLOCK: usize = 10;
const LEARNING_RATE: f64 = 1e-3;

/// What is compared, and for how long.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct RankOptions {
    /// Ranks, each a thread with a CPU device and an even share of the cores.
    pub ranks: usize,
    /// Rows of one batch; a rank has two of them in a step.
    pub batch: usize,
    /// Inputs, hidden features and outputs.
    pub features: [usize; 3],
    /// Steps that are measured.
    pub steps: usize,
    /// Steps before them.
    pub warmup: usize,
    /// Steps that are traced afterwards.
    pub traced: usize,
    /// The seed of parameters and data.
    pub seed: u64,
    /// Whether gradients are averaged over the ranks at the end of a step.
    pub average: bool,
    /// The network between the ranks. `None` for one without a limit of bandwidth, whose latencies in the middle of a step are half of
    /// what the serial step takes without it.
    pub network: Option<CommModel>,
}

impl Default for RankOptions {
    fn default() -> RankOptions {
        RankOptions {
            ranks: 2,
            batch: 8192,
            features: [10, 256, 2],
            steps: 100,
            warmup: 20,
            traced: 10,
            seed: 7,
            average: false,
            network: None,
        }
    }
}

/// What [`compare_ranks`] found. Times are of rank 0.
#[derive(Debug)]
#[non_exhaustive]
pub struct RankComparison {
    /// What was asked for.
    pub options: RankOptions,
    /// The network that was modelled.
    pub network: CommModel,
    /// Batches one after the other.
    pub serial: RankSchedule,
    /// Batches on a lane each.
    pub overlapped: RankSchedule,
    /// How many times as fast the overlapped schedule is.
    pub speedup: f64,
    /// How much of the time that the serial schedule waits for the network the overlapped one does not, from step times with and
    /// without it.
    pub hidden: f64,
    /// Whether all ranks of both schedules, with and without the network, ended with the same parameters, bit for bit.
    pub identical_parameters: bool,
    /// Whether all losses were the same, bit for bit: those of a rank in every schedule.
    pub identical_losses: bool,
}

/// One of the two schedules.
#[derive(Debug)]
#[non_exhaustive]
pub struct RankSchedule {
    /// `serial` or `overlapped`.
    pub name: &'static str,
    /// Milliseconds of a step.
    pub step_ms: Quantiles,
    /// The same without the modelled network.
    pub without_network_ms: Quantiles,
    /// What was traced, collectives and how long nothing ran beside them included.
    pub profile: Profile,
}

impl RankSchedule {
    /// Milliseconds that the network costs a step.
    pub fn network_ms(&self) -> f64 {
        self.step_ms.median - self.without_network_ms.median
    }
}

/// Trains the forum's model on ranks that are threads of this process: serial and overlapped steps in turn, with a modelled network
/// between the ranks and without one.
///
/// # Errors
/// `InvalidArgument` for no ranks, rows, features or steps; what a rank fails with.
pub fn compare_ranks(options: &RankOptions) -> Result<RankComparison> {
    let RankOptions { ranks, batch, features, steps, traced, .. } = *options;
    let counts = [("ranks", ranks), ("batch", batch), ("steps", steps), ("traced", traced)];
    let counts = counts.into_iter().chain(features.map(|features| ("features", features)));
    crate::expect_positive("compare", counts)?;
    let alike = Communicator::threads(ranks)?;
    let devices: Vec<Device> = alike.iter().map(|comm| comm.device().clone()).collect();
    let network = match options.network {
        Some(network) => network,
        None => halved(options, &devices)?,
    };
    let groups = [Some(network), None].map(|network| group(&devices, network));
    let [with, without] = groups;
    let results = on_ranks(with?.into_iter().zip(without?), |comms| run(options, [&comms.0, &comms.1]))?;
    Ok(summary(*options, network, results))
}

fn group(devices: &[Device], network: Option<CommModel>) -> Result<Vec<Communicator>> {
    Communicator::threads_with(devices, CommOptions { model: network, ..CommOptions::default() })
}

/// The network that the options stand for.
fn halved(options: &RankOptions, devices: &[Device]) -> Result<CommModel> {
    let times = on_ranks(group(devices, None)?, |comm| {
        let mut rank = Trainer::new(options, &comm, 1)?;
        (0..options.warmup).try_for_each(|_| rank.step().map(drop))?;
        let steps = options.steps.min(2 * BLOCK);
        (0..steps).map(|_| rank.step()).collect::<Result<Vec<f64>>>().map(median)
    })?;
    let messages = BATCHES as u32 * messages(options.ranks).max(1);
    let latency = Duration::from_secs_f64(times[0] / 2e3) / messages;
    Ok(CommModel { latency, bandwidth: f64::INFINITY })
}

/// What each rank gives, on a thread of its own. A rank that was lost is another one's failure.
fn on_ranks<C: Send, T: Send>(
    comms: impl IntoIterator<Item = C>,
    rank: impl Fn(C) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let caught = |(at, comm): (usize, C)| {
        let named =
            |panicked: Panicked| Error::new(ErrorKind::LanePanicked { lane: at, message: panicked.message });
        Panicked::catch(|| rank(comm)).unwrap_or_else(|panicked| Err(named(panicked)))
    };
    let results: Vec<Result<T>> = thread::scope(|scope| {
        let caught = &caught;
        let ranks = comms.into_iter().enumerate().map(|numbered| scope.spawn(move || caught(numbered)));
        let lost = |_| Err(Error::new(ErrorKind::LanePanicked { lane: 0, message: "a rank ended".into() }));
        ranks.collect::<Vec<_>>().into_iter().map(|rank| rank.join().unwrap_or_else(lost)).collect()
    });
    let (done, mut failed): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
    failed.sort_by_key(|error| {
        matches!(
            error.as_ref().map_err(Error::kind),
            Err(ErrorKind::RankLost { .. } | ErrorKind::Async { .. })
        )
    });
    match failed.into_iter().next() {
        Some(Err(error)) => Err(error),
        _ => done.into_iter().collect(),
    }
}

/// One rank in one schedule.
struct Trainer {
    comm: Communicator,
    /// For each batch, so that their collectives may run at once.
    batches: Vec<(Communicator, Tensor)>,
    target: Tensor,
    model: DataParallel<Forum>,
    sgd: Sgd,
    lanes: ConcurrentBatches,
    average: bool,
    losses: Vec<Tensor>,
}

impl Trainer {
    fn new(options: &RankOptions, comm: &Communicator, lanes: usize) -> Result<Trainer> {
        let &RankOptions { batch, features, seed, average, .. } = options;
        let device = comm.device();
        let uniform = |shape: [usize; 2], op: usize| {
            let key = RandomKey { seed, op: 16 + op as u64 };
            Tensor::uniform(&shape, -1.0, 1.0, DType::F32, key, device)
        };
        let numbered = |at: usize| comm.rank() * (BATCHES + 1) + at;
        let batches = (0..BATCHES).map(|at| {
            // Batches are nobody's parameters: they are made once.
            Ok((comm.duplicate()?, uniform([batch, features[0]], numbered(at))?))
        });
        let batches = batches.collect::<Result<Vec<_>>>()?;
        let target = uniform([BATCHES * batch, comm.size() * features[2]], numbered(BATCHES))?;
        let model = DataParallel::new(Forum::new(features, seed, device)?, comm)?;
        let sgd = Sgd::new(model.parameters(), LEARNING_RATE)?;
        let lanes = ConcurrentBatches::with_options(device, lanes, Lanes::Always)?;
        let comm = comm.clone();
        Ok(Trainer { comm, batches, target, model, sgd, lanes, average, losses: Vec::new() })
    }

    /// A step, from when all ranks begin until this one has nothing left to do. Gives milliseconds.
    fn step(&mut self) -> Result<f64> {
        let device = self.comm.device();
        self.comm.barrier(&device.default_stream())?;
        device.synchronize()?;
        let start = Instant::now();
        let (model, target) = (self.model.model(), Var::constant(self.target.clone()));
        let forward = |(comm, x): &(Communicator, Tensor)| model.forward(&Var::constant(x.clone()), comm);
        let loss = |outputs: &[Var]| mse(&Var::cat(&outputs.iter().collect::<Vec<_>>(), 0)?, &target);
        let step = self.lanes.merged_step(&self.batches, forward, loss)?;
        let mut gradients = step.gradients;
        if self.average {
            self.model.average(&mut gradients)?;
        }
        self.sgd.step(&gradients)?;
        device.synchronize()?;
        self.losses.extend(step.losses);
        Ok(start.elapsed().as_secs_f64() * 1e3)
    }

    /// Parameters and losses.
    fn state(&self) -> Result<[Vec<u32>; 2]> {
        let bits = |tensors: &mut dyn Iterator<Item = &Tensor>| -> Result<Vec<u32>> {
            let mut all = Vec::new();
            for tensor in tensors {
                all.extend(tensor.to_vec::<f32>()?.into_iter().map(f32::to_bits));
            }
            Ok(all)
        };
        let parameters = self.model.parameters();
        Ok([bits(&mut parameters.iter().map(Var::value))?, bits(&mut self.losses.iter())?])
    }
}

/// What a rank gives.
struct Done {
    /// Of each schedule with the network, then of each without.
    times_ms: Vec<Vec<f64>>,
    states: Vec<[Vec<u32>; 2]>,
    profiles: Vec<Profile>,
}

/// The name of each schedule, and its lanes.
const SCHEDULES: [(&str, usize); 2] = [("serial", 1), ("overlapped", BATCHES)];

fn run(options: &RankOptions, comms: [&Communicator; 2]) -> Result<Done> {
    let mut ranks = Vec::new();
    for comm in comms {
        for (_, lanes) in SCHEDULES {
            ranks.push(Trainer::new(options, comm, lanes)?);
        }
    }
    for rank in &mut ranks {
        (0..options.warmup).try_for_each(|_| rank.step().map(drop))?;
    }
    let mut times_ms = vec![Vec::with_capacity(options.steps); ranks.len()];
    let mut left = options.steps;
    while left > 0 {
        let block = left.min(BLOCK);
        for (rank, times) in ranks.iter_mut().zip(&mut times_ms) {
            for _ in 0..block {
                times.push(rank.step()?);
            }
        }
        left -= block;
    }
    let mut profiles = Vec::new();
    for rank in ranks.iter_mut().take(SCHEDULES.len()) {
        let profiler =
            Profile::start(rank.comm.device(), ProfileOptions { places: false, ..Default::default() })?;
        for _ in 0..options.traced {
            rank.step()?;
            profiler.step();
        }
        profiles.push(profiler.stop()?);
    }
    // As many steps of each, so that parameters can be compared.
    for rank in ranks.iter_mut().skip(SCHEDULES.len()) {
        (0..options.traced).try_for_each(|_| rank.step().map(drop))?;
    }
    let states = ranks.iter().map(Trainer::state).collect::<Result<_>>()?;
    Ok(Done { times_ms, states, profiles })
}

fn summary(options: RankOptions, network: CommModel, mut ranks: Vec<Done>) -> RankComparison {
    // With averaged gradients the ranks have the same parameters, too.
    let same = |at: usize| {
        let first = &ranks[0].states[0][at];
        let of_rank = |rank: &Done| {
            let own = if at == 0 && options.average { first } else { &rank.states[0][at] };
            rank.states.iter().all(|state| state[at] == *own)
        };
        ranks.iter().all(of_rank)
    };
    let (identical_parameters, identical_losses) = (same(0), same(1));
    let Done { times_ms, profiles, .. } = ranks.swap_remove(0);
    let times = |at: usize| Quantiles::of(times_ms[at].iter().copied());
    let mut profiles = profiles.into_iter();
    let mut schedule = |at: usize| {
        let profile = profiles.next().unwrap_or_default();
        RankSchedule {
            name: SCHEDULES[at].0,
            step_ms: times(at),
            without_network_ms: times(SCHEDULES.len() + at),
            profile,
        }
    };
    let (serial, overlapped) = (schedule(0), schedule(1));
    RankComparison {
        options,
        network,
        speedup: serial.step_ms.median / overlapped.step_ms.median,
        hidden: 1.0 - overlapped.network_ms() / serial.network_ms(),
        identical_parameters,
        identical_losses,
        serial,
        overlapped,
    }
}
