//! Mistakes of published two-stream training code, made with this engine: left to its users, it refuses them and says
//! why; left to itself, it makes the same program right.

#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use std::sync::OnceLock;
use std::time::Duration;

use common::devices::Kind;
use common::process::run_ignored;
use streamgrad::optim::{Sgd, SgdOptions};
use streamgrad::prelude::*;
use streamgrad::{
    AllocatorConfig, Error, ErrorKind, Graph, Policy, Result, ReusePolicy, Schedule, StreamId, SyncDebug,
    SyncMode, cross_entropy,
};

/// Where a program runs, and whether it has the waits that its author forgot.
struct Setting {
    device: Device,
    /// The default stream.
    main: Stream,
    encoder: Stream,
    decoder: Stream,
    waits: bool,
}

type Program = fn(&Setting) -> Result<Vec<Tensor>>;

impl Setting {
    fn new(kind: Kind) -> Result<Setting> {
        let device = kind.device();
        let (encoder, decoder) = (device.new_stream()?, device.new_stream()?);
        Ok(Setting { main: device.default_stream(), device, encoder, decoder, waits: false })
    }

    /// One stream in the place of all.
    fn serial(kind: Kind) -> Setting {
        let device = kind.plain().device();
        let main = device.default_stream();
        Setting { encoder: main.clone(), decoder: main.clone(), main, device, waits: false }
    }

    /// The wait that was forgotten.
    fn wait(&self, waiter: &Stream, awaited: &Stream) -> Result<()> {
        if self.waits { waiter.wait_stream(awaited) } else { Ok(()) }
    }

    /// Runs a program while every stream is held, so that nothing is in order by luck, and returns its results' values.
    fn run_held(&self, program: Program) -> Result<Vec<Vec<f32>>> {
        let holds = [&self.main, &self.encoder, &self.decoder].map(Stream::hold);
        let results = program(self);
        drop(holds);
        results?.iter().map(Tensor::to_vec).collect()
    }

    /// [`run_held`](Self::run_held), with an audit that has to find everything in order.
    fn run_audited(&self, program: Program) -> Result<Vec<Vec<f32>>> {
        self.device.start_audit();
        let results = self.run_held(program)?;
        self.device.synchronize()?;
        assert_eq!(self.device.stop_audit().hazards(), []);
        Ok(results)
    }

    fn tensor(&self, seed: u32) -> Result<Tensor> {
        let values: Vec<f32> = (0..16).map(|i| ((i * 7 + seed * 5) % 11) as f32 * 0.1 - 0.4).collect();
        Tensor::from_slice(&values, &[4, 4], &self.device)
    }
}

fn kinds() -> Vec<Kind> {
    let explored = [Policy::OldestFirst, Policy::Random { seed: 1 }].map(Schedule::Explore);
    Kind::all(&[Schedule::Threads, Schedule::Delay { seed: 1 }, explored[0], explored[1]])
}

/// A race as it is reported: each op and its stream.
type Race = (&'static str, StreamId, &'static str, StreamId);

/// With the mistake the program is refused under `Manual`, with that race as the reason; with the user's own waits it is
/// right; and under `Auto` it is right as it is.
fn is_a_race(program: Program, expected: impl Fn(&Setting) -> Race) -> Result<()> {
    for kind in kinds() {
        // A CUDA device keeps what it has loaded while one of its devices lives.
        let first = Setting::serial(kind);
        let serial: Vec<Vec<f32>> = program(&first)?.iter().map(Tensor::to_vec).collect::<Result<_>>()?;
        let setting = Setting::new(kind)?;
        setting.device.set_sync_mode(SyncMode::Manual);
        let refused = setting.run_held(program).unwrap_err();
        let ErrorKind::Race {
            op, stream, place, earlier, earlier_stream, earlier_tick, address, bytes, ..
        } = refused.kind()
        else {
            panic!("{kind:?}: {refused}");
        };
        assert_eq!((*op, *stream, *earlier, *earlier_stream), expected(&setting), "{kind:?}");
        assert!(*earlier_tick > 0 && *address > 0 && *bytes > 0);
        let text = format!(
            "{op} on stream {stream} at {place} races with {earlier} on stream {earlier_stream} at tests/"
        );
        assert!(refused.to_string().starts_with(&text), "{refused}");

        let repaired = Setting { waits: true, ..Setting::new(kind)? };
        repaired.device.set_sync_mode(SyncMode::Manual);
        assert_eq!(repaired.run_audited(program)?, serial, "{kind:?}, with waits");
        assert_eq!(Setting::new(kind)?.run_audited(program)?, serial, "{kind:?}, left to the engine");
    }
    Ok(())
}

#[test]
fn an_input_is_cast_on_the_default_stream_and_the_encoder_does_not_wait() -> Result<()> {
    fn program(s: &Setting) -> Result<Vec<Tensor>> {
        let weight = s.encoder.scope(|| s.tensor(1))?;
        let images =
            Tensor::from_slice(&[3u8, 1, 4, 1, 5, 9, 2, 6], &[2, 4], &s.device)?.to_dtype(DType::F32)?;
        s.wait(&s.encoder, &s.main)?;
        let code = s.encoder.scope(|| images.matmul(&weight)?.relu())?;
        Ok(vec![code])
    }
    is_a_race(program, |s| ("matmul", s.encoder.id(), "cast", s.main.id()))
}

#[test]
fn labels_are_copied_on_the_default_stream_and_the_loss_does_not_wait() -> Result<()> {
    fn program(s: &Setting) -> Result<Vec<Tensor>> {
        let logits = s.decoder.scope(|| s.tensor(2).map(Var::leaf))?;
        let labels = Tensor::from_slice(&[0i64, 3, 1, 2], &[4], &s.device)?;
        s.wait(&s.decoder, &s.main)?;
        let loss = s.decoder.scope(|| cross_entropy(&logits, &labels))?;
        Ok(vec![loss.value().clone()])
    }
    is_a_race(program, |s| ("cross_entropy", s.decoder.id(), "upload", s.main.id()))
}

#[test]
fn a_value_of_one_stream_is_used_on_another_with_no_wait_at_all() -> Result<()> {
    fn program(s: &Setting) -> Result<Vec<Tensor>> {
        let code = s.encoder.scope(|| s.tensor(3)?.exp())?;
        s.wait(&s.decoder, &s.encoder)?;
        Ok(vec![s.decoder.scope(|| code.mul(&code))?])
    }
    is_a_race(program, |s| ("mul", s.decoder.id(), "exp", s.encoder.id()))
}

#[test]
fn an_input_is_overwritten_while_another_stream_still_reads_it() -> Result<()> {
    fn program(s: &Setting) -> Result<Vec<Tensor>> {
        let input = s.encoder.scope(|| s.tensor(4))?;
        let code = s.encoder.scope(|| input.tanh())?;
        s.wait(&s.main, &s.encoder)?;
        input.fill_(0.0)?;
        Ok(vec![code, input])
    }
    // The first of the two needs is the last write.
    is_a_race(program, |s| ("fill", s.main.id(), "upload", s.encoder.id()))
}

#[test]
fn a_gradient_is_read_on_the_default_stream_while_backward_runs_on_another() -> Result<()> {
    fn program(s: &Setting) -> Result<Vec<Tensor>> {
        let (leaf, gradients) = s.decoder.scope(|| {
            let leaf = Var::leaf(s.tensor(5)?);
            Ok::<_, Error>((leaf.clone(), leaf.square()?.sum(&[], false)?.backward()?))
        })?;
        s.wait(&s.main, &s.decoder)?;
        Ok(vec![gradients.get(&leaf).unwrap().mul_scalar(-0.1)?])
    }
    is_a_race(program, |s| ("mul_scalar", s.main.id(), "square_grad", s.decoder.id()))
}

/// The user's waits end where the pass begins: nobody but the engine can write one in its middle.
#[test]
fn a_pass_over_two_streams_is_left_to_waits_by_hand() -> Result<()> {
    fn program(s: &Setting) -> Result<Vec<Tensor>> {
        let leaf = s.encoder.scope(|| s.tensor(5).map(Var::leaf))?;
        let code = s.encoder.scope(|| leaf.exp())?;
        s.decoder.wait_stream(&s.encoder)?;
        let loss = s.decoder.scope(|| code.square()?.sum(&[], false))?;
        Ok(vec![loss.backward()?.get(&leaf).unwrap()])
    }
    for kind in kinds() {
        let s = Setting::new(kind)?;
        s.device.set_sync_mode(SyncMode::Manual);
        let refused = s.run_held(program).unwrap_err();
        let (on, earlier_on) = (s.encoder.id(), s.decoder.id());
        assert!(
            matches!(refused.kind(), ErrorKind::Race { stream, earlier_stream, .. } if (*stream, *earlier_stream) == (on, earlier_on)),
            "{refused}"
        );
        s.device.set_sync_mode(SyncMode::Auto);
        let serial = program(&Setting::serial(kind))?.remove(0).to_vec::<f32>()?;
        assert_eq!(s.run_audited(program)?, [serial]);
    }
    Ok(())
}

/// The lines that a race names: that of the refused op, and that of the earlier one.
fn lines_of(refused: Error) -> [u32; 2] {
    let ErrorKind::Race { place, earlier_place, .. } = *refused.kind() else { panic!("{refused}") };
    let places = [Some(place), earlier_place].map(Option::unwrap);
    assert_eq!(place, refused.location());
    for place in places {
        assert!(
            place.file() == file!() && refused.to_string().contains(&format!(" at {place}")),
            "{refused}"
        );
    }
    places.map(std::panic::Location::line)
}

/// Whether the ops are called by the program, by a layer, or by the backward pass. On CPUs: a library that multiplies matrices may load
/// a kernel at any product, and that would wait for the streams that tests hold.
#[test]
fn a_race_names_both_lines_of_the_program() -> Result<()> {
    for kind in kinds().into_iter().filter(|kind| matches!(kind, Kind::Cpu(_))) {
        let s = Setting::new(kind)?;
        let linear = Linear::new(4, 3, &s.device)?;
        let boxed: Box<dyn Forward> = Box::new(Linear::new(4, 3, &s.device)?);
        let x = Var::constant(s.tensor(1)?);
        s.device.synchronize()?;
        s.device.set_sync_mode(SyncMode::Manual);
        let holds = [&s.main, &s.encoder, &s.decoder].map(Stream::hold);
        let (exp, code) = (line!(), s.encoder.scope(|| x.exp())?);
        let (neg, refused) = (line!(), s.decoder.scope(|| code.neg()).unwrap_err());
        assert_eq!(lines_of(refused), [neg, exp], "{kind:?}: an op");
        let (forward, refused) = (line!(), s.decoder.scope(|| linear.forward(&code)).unwrap_err());
        assert_eq!(lines_of(refused), [forward, exp], "{kind:?}: a layer, which reads");
        let (forward, refused) = (line!(), s.decoder.scope(|| boxed.forward(&code)).unwrap_err());
        assert_eq!(lines_of(refused), [forward, exp], "{kind:?}: a layer behind `dyn`");
        let (layer, y) = (line!(), s.encoder.scope(|| linear.forward(&x))?);
        let (sum, refused) = (line!(), y.sum(&[], false).unwrap_err());
        assert_eq!(lines_of(refused), [sum, layer], "{kind:?}: a layer, which writes");
        s.main.wait_stream(&s.encoder)?;
        let loss = y.sum(&[], false)?;
        let (backward, refused) = (line!(), loss.backward().map(drop).unwrap_err());
        assert_eq!(lines_of(refused), [backward; 2], "{kind:?}: the backward pass");
        drop(holds);
    }
    Ok(())
}

#[test]
fn a_hazard_names_both_lines_of_the_program() -> Result<()> {
    let s = Setting::new(Kind::Cpu(Schedule::Threads))?;
    let linear = Linear::new(4, 3, &s.device)?;
    let x = Var::constant(s.tensor(1)?);
    s.device.start_audit();
    let hold = s.encoder.hold();
    let (layer, y) = (line!(), s.encoder.scope(|| linear.forward(&x))?);
    let (sum, loss) = (line!(), y.sum(&[], false)?);
    let (backward, gradients) = (line!(), loss.backward()?);
    drop(hold);
    s.device.synchronize()?;
    let audit = s.device.stop_audit();
    let lines = |wait| {
        let hazard = audit.hazards_without(wait).into_iter().next()?;
        let text = hazard.to_string();
        let places = [hazard.first.place, hazard.second.place];
        assert!(places.iter().all(|place| place.file() == file!() && text.contains(&place.to_string())));
        Some(places.map(std::panic::Location::line))
    };
    // Some waits keep memory, and no values, apart.
    let found: Vec<[u32; 2]> = (0..audit.waits().count()).filter_map(lines).collect();
    assert_eq!(found, [[layer, sum], [backward; 2]]);
    drop(gradients);
    Ok(())
}

/// It neither waits for side streams nor makes them wait, as the default stream of other systems does.
#[test]
fn an_op_on_the_default_stream_stands_between_two_side_streams() -> Result<()> {
    fn program(s: &Setting) -> Result<Vec<Tensor>> {
        let code = s.encoder.scope(|| s.tensor(6)?.sigmoid())?;
        s.wait(&s.main, &s.encoder)?;
        let scaled = code.mul_scalar(2.0)?;
        s.wait(&s.decoder, &s.main)?;
        Ok(vec![s.decoder.scope(|| scaled.exp())?])
    }
    is_a_race(program, |s| ("mul_scalar", s.main.id(), "sigmoid", s.encoder.id()))?;
    for kind in kinds() {
        let s = Setting::new(kind)?;
        let hold = s.encoder.hold();
        let held = s.encoder.scope(|| s.tensor(7)?.exp())?;
        let free = s.tensor(7)?;
        assert_eq!(s.decoder.scope(|| free.mul_scalar(1.0))?.to_vec::<f32>()?, free.to_vec::<f32>()?);
        assert!(!s.encoder.is_idle()?);
        drop(hold);
        assert_eq!(held.to_vec::<f32>()?, free.exp()?.to_vec::<f32>()?);
    }
    Ok(())
}

/// `record_stream` with the stream that made the tensor protects nothing. Here nobody is asked: memory that another stream
/// still reads comes back at once, and with it the wait that it takes.
#[test]
fn record_stream_names_the_stream_that_the_memory_came_from() -> Result<()> {
    for kind in kinds() {
        for mode in [SyncMode::Manual, SyncMode::Auto] {
            let s = Setting { waits: true, ..Setting::new(kind)? };
            s.device.set_allocator_config(AllocatorConfig {
                reuse: ReusePolicy::WaitFirst,
                ..AllocatorConfig::default()
            });
            s.device.set_sync_mode(mode);
            s.device.start_audit();
            let hold = s.decoder.hold();
            let code = s.encoder.scope(|| s.tensor(8)?.exp())?;
            let address = code.buffer().ptr();
            s.wait(&s.decoder, &s.encoder)?;
            let decoded = s.decoder.scope(|| code.neg())?;
            drop(code);
            let before = s.device.sync_stats();
            let next = s.encoder.scope(|| s.tensor(9))?;
            // One of the encoder's next tensors gets the block, which the decoder has not read yet.
            let mut others = vec![next];
            while others.iter().all(|other| other.buffer().ptr() != address) {
                assert!(others.len() < 1000, "{kind:?}, {mode:?}: the memory did not come back");
                others.push(s.encoder.scope(|| s.tensor(others.len() as u32))?);
            }
            assert_eq!((s.device.sync_stats() - before).waits_inserted, 1, "{kind:?}, {mode:?}");
            drop(hold);
            let expected: Vec<f32> = s.tensor(8)?.exp()?.neg()?.to_vec()?;
            assert_eq!(decoded.to_vec::<f32>()?, expected);
            s.device.synchronize()?;
            let audit = s.device.stop_audit();
            assert_eq!(audit.hazards(), []);
            // What the program would be without that wait, which is the last one.
            let hazards = audit.hazards_without(audit.waits().count() - 1);
            assert!(hazards.iter().any(|h| h.first.op == "neg" && h.first.moment.stream == s.decoder.id()));
        }
    }
    Ok(())
}

#[test]
fn elapsed_time_is_asked_for_before_the_end() -> Result<()> {
    const WORK: Duration = Duration::from_millis(2);
    for kind in kinds() {
        let s = Setting::new(kind)?;
        let hold = s.encoder.hold();
        let start = s.encoder.record()?;
        s.encoder.launch_host("work", &[], || std::thread::sleep(WORK))?;
        let end = s.encoder.record()?;
        // A host's clock would say here that the work took no time.
        assert!(!s.encoder.is_idle()? && !start.is_complete()? && !end.is_complete()?);
        drop(hold);
        assert!(start.elapsed_ms(&end)? >= WORK.as_secs_f64() * 1e3);
        assert!(end.elapsed_ms(&start)? < 0.0);
        assert!(end.is_complete()?);
    }
    Ok(())
}

/// Three steps of training; what the host does at each of them is `each`.
fn train(s: &Setting, each: impl Fn(&Device, &Var) -> Result<()>) -> Result<(Vec<f32>, u64)> {
    let weight = Var::leaf(s.tensor(10)?);
    let input = Var::constant(s.tensor(11)?);
    let mut sgd = Sgd::new(vec![weight.clone()], SgdOptions { lr: 0.1, ..SgdOptions::default() })?;
    let before = s.device.sync_stats().host_syncs;
    let mut losses = Vec::new();
    for _ in 0..3 {
        let loss = s.encoder.scope(|| input.matmul(&weight)?.square()?.mean(&[], false))?;
        sgd.step(&loss.backward()?)?;
        each(&s.device, &loss)?;
        losses.push(loss.value().clone());
    }
    let syncs = s.device.sync_stats().host_syncs - before;
    Ok((losses.iter().map(|loss| loss.item()).collect::<Result<_>>()?, syncs))
}

#[test]
fn the_host_synchronises_at_each_step() -> Result<()> {
    let read = |_: &Device, loss: &Var| loss.value().item::<f32>().map(drop);
    for kind in kinds() {
        let expected = train(&Setting::serial(kind), |_, _| Ok(()))?;
        assert_eq!(expected.1, 0, "a loop that only launches never waits");
        let s = Setting::new(kind)?;
        let training = |each: &dyn Fn(&Device, &Var) -> Result<()>| train(&s, each);
        assert_eq!(training(&|_, _| Ok(()))?, expected);
        assert_eq!(training(&|device, _| device.synchronize())?, (expected.0.clone(), 3));
        s.device.set_sync_debug(SyncDebug::Count);
        assert_eq!(training(&read)?, (expected.0.clone(), 3));
        let found = s.device.hidden_syncs();
        assert!(found.iter().all(|sync| sync.place.file() == file!()));
        // The read at each step, and that of all losses at the end.
        assert_eq!(found.iter().map(|sync| sync.count).collect::<Vec<_>>(), [3, 3]);
        s.device.set_sync_debug(SyncDebug::Refuse);
        let refused = training(&read);
        assert!(
            matches!(refused.as_ref().map_err(Error::kind), Err(ErrorKind::HiddenSync { place }) if place.contains(file!())),
            "{refused:?}"
        );
    }
    Ok(())
}

/// The bytes are the device's as soon as the call returns, whether it has copied them or kept them.
#[test]
fn host_memory_is_reused_while_its_copy_is_pending() -> Result<()> {
    for kind in kinds() {
        let s = Setting::new(kind)?;
        let hold = s.encoder.hold();
        let mut batch = vec![1.0f32; 64];
        let first = s.encoder.scope(|| Tensor::from_slice(&batch, &[64], &s.device))?;
        batch.fill(2.0);
        let second = s.encoder.scope(|| Tensor::from_slice(&batch, &[64], &s.device))?;
        drop(batch);
        assert!(!s.encoder.is_idle()?);
        drop(hold);
        assert_eq!(first.to_vec::<f32>()?, [1.0; 64]);
        assert_eq!(second.to_vec::<f32>()?, [2.0; 64]);
    }
    Ok(())
}

unsafe extern "C" {
    safe fn atexit(function: extern "C" fn()) -> i32;
}

/// A training step with all that keeps something for a thread: a scope, autocast, recomputation and a captured step.
fn step() -> Result<Vec<u32>> {
    let device = Device::cpu();
    let model = mlp(&[8, 16, 4], 1, &device)?;
    let labels = Tensor::from_slice(&[0_i64, 1, 2, 3], &[4], &device)?;
    let input = Var::constant(Tensor::ones(&[4, 8], DType::F32, &device)?);
    let loss = || {
        let hidden = recompute(|x| x.exp()?.tanh(), &input)?;
        cross_entropy(&model.forward(&hidden)?, &labels)
    };
    let gradients = device.new_stream()?.scope(|| autocast(DType::BF16, loss)?.backward())?;
    let mut values = Graph::capture(&device, || input.value().exp())?.replay()?.to_vec::<f32>()?;
    for parameter in model.parameters() {
        values.extend(gradients.get(&parameter).unwrap().to_vec::<f32>()?);
    }
    Ok(values.into_iter().map(f32::to_bits).collect())
}

static EXPECTED: OnceLock<Vec<u32>> = OnceLock::new();

extern "C" fn step_at_exit() {
    println!("at exit: {:?}", step().map(|values| Some(&values) == EXPECTED.get()));
}

#[test]
#[ignore = "run by the test below"]
fn inner_exit() {
    EXPECTED.set(step().unwrap()).unwrap();
    assert_eq!(atexit(step_at_exit), 0);
    // The thread's own variables go first.
    std::process::exit(0);
}

#[test]
fn a_step_in_an_exit_handler_is_as_any_other() {
    let output = run_ignored("inner_exit", &[]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("at exit: Ok(true)"), "{text}");
}
