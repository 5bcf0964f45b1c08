//! Rule 3: random programs over several streams give what they give when run one after the other.

use device::{Buffer, Device, Hold, Placement, Result, Schedule, Stream, StreamOptions, Use};
use proptest::prelude::*;

use crate::common::{WORDS, Words, buffer, fresh};

const STREAMS: usize = 4;
const BUFFERS: usize = 4;

#[derive(Clone, Debug)]
enum Step {
    /// `writes` become a hash of the step, what is read, and what they held.
    Run {
        stream: usize,
        reads: Vec<usize>,
        writes: Vec<usize>,
        delay: u32,
    },
    /// The host reads a buffer.
    Download(usize),
    /// The host writes a buffer's first word.
    Upload {
        stream: usize,
        target: usize,
    },
    /// What follows on a stream starts when it is released.
    Hold(usize),
    Release(usize),
    /// The user orders streams by hand, which may change nothing.
    WaitStream(usize, usize),
    Synchronize(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let (stream, target) = (0..STREAMS, 0..BUFFERS);
    let some = |most| prop::collection::vec(0..BUFFERS, 0..=most);
    prop_oneof![
        12 => (stream.clone(), some(3), some(2), 0..400u32)
            .prop_map(|(stream, reads, writes, delay)| Step::Run { stream, reads, writes, delay }),
        1 => target.clone().prop_map(Step::Download),
        1 => (stream.clone(), target).prop_map(|(stream, target)| Step::Upload { stream, target }),
        1 => stream.clone().prop_map(Step::Hold),
        2 => stream.clone().prop_map(Step::Release),
        1 => (stream.clone(), stream.clone()).prop_map(|(one, other)| Step::WaitStream(one, other)),
        1 => stream.prop_map(Step::Synchronize),
    ]
}

type Content = [u64; WORDS];

fn hash(seed: u64, inputs: &[Content], old: Content) -> Content {
    let mix = |a: u64, b: u64| (a ^ b).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    std::array::from_fn(|i| inputs.iter().fold(mix(seed, old[i]), |sum, input| mix(sum, input[i])))
}

/// One after the other, without a device. Also what each host read sees.
fn serial(program: &[Step]) -> (Vec<Content>, Vec<Content>) {
    let mut buffers = vec![[0; WORDS]; BUFFERS];
    let mut seen = Vec::new();
    for (index, step) in program.iter().enumerate() {
        match step {
            Step::Run { reads, writes, .. } => {
                let inputs: Vec<_> = reads.iter().map(|&read| buffers[read]).collect();
                writes.iter().for_each(|&w| buffers[w] = hash(index as u64, &inputs, buffers[w]));
            }
            Step::Download(target) => seen.push(buffers[*target]),
            Step::Upload { target, .. } => buffers[*target][0] = index as u64,
            _ => {}
        }
    }
    (buffers, seen)
}

fn run(streams: &[Stream], buffers: &[Buffer], program: &[Step]) -> Result<Vec<Content>> {
    let mut holds: Vec<Option<Hold>> = (0..STREAMS).map(|_| None).collect();
    let mut seen = Vec::new();
    for (index, step) in program.iter().enumerate() {
        match step {
            Step::Run { stream, reads, writes, delay } => {
                let inputs: Vec<_> = reads.iter().map(|&read| Words::of(&buffers[read])).collect();
                let outputs: Vec<_> = writes.iter().map(|&write| Words::of(&buffers[write])).collect();
                let uses: Vec<_> = reads
                    .iter()
                    .map(|&read| Use::read(&buffers[read]))
                    .chain(writes.iter().map(|&write| Use::write(&buffers[write])))
                    .collect();
                let delay = *delay;
                streams[*stream].launch_host("hash", &uses, move || {
                    let inputs: Vec<_> = inputs.into_iter().map(Words::get).collect();
                    (0..delay).for_each(|_| std::hint::spin_loop());
                    outputs.into_iter().for_each(|out| out.set(hash(index as u64, &inputs, out.get())));
                })?;
            }
            Step::Download(target) => {
                holds.iter_mut().for_each(|hold| *hold = None);
                seen.push(content(&buffers[*target])?);
            }
            Step::Upload { stream, target } => {
                streams[*stream].upload("upload", &buffers[*target], 0, &(index as u64).to_ne_bytes())?;
            }
            Step::Hold(stream) => holds[*stream] = Some(streams[*stream].hold()),
            Step::Release(stream) => holds[*stream] = None,
            Step::WaitStream(one, other) => streams[*one].wait_stream(&streams[*other])?,
            Step::Synchronize(stream) => {
                holds.iter_mut().for_each(|hold| *hold = None);
                streams[*stream].synchronize()?;
            }
        }
    }
    Ok(seen)
}

fn content(buffer: &Buffer) -> Result<Content> {
    buffer.download(|bytes| {
        let words = device::from_bytes::<i64>(bytes);
        std::array::from_fn(|i| words[i] as u64)
    })
}

/// The streams of a device: its default one, and others that are placed as asked.
fn streams(device: &Device, placement: Placement) -> Result<Vec<Stream>> {
    let options = StreamOptions { placement, ..StreamOptions::default() };
    let mut streams = vec![device.default_stream()];
    for _ in 1..STREAMS {
        streams.push(device.new_stream_with(options)?);
    }
    Ok(streams)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn rule_03_streams_give_what_serial_execution_gives(program in prop::collection::vec(step(), 1..60)) {
        let (expected, expected_seen) = serial(&program);
        let schedules = [
            (Schedule::Inline, Placement::Worker),
            (Schedule::Inline, Placement::Caller),
            (Schedule::Threads, Placement::Worker),
            (Schedule::Delay { seed: program.len() as u64 }, Placement::Worker),
        ];
        for (schedule, placement) in schedules {
            let run = || -> Result<_> {
                let device = fresh(schedule);
                let streams = streams(&device, placement)?;
                let buffers = (0..BUFFERS).map(|i| buffer(&streams[i])).collect::<Result<Vec<_>>>()?;
                device.start_audit();
                let seen = run(&streams, &buffers, &program)?;
                let result = buffers.iter().map(content).collect::<Result<Vec<_>>>()?;
                device.synchronize()?;
                Ok((result, seen, device.stop_audit()))
            };
            let (result, seen, audit) = run().map_err(|error| TestCaseError::fail(error.to_string()))?;
            prop_assert_eq!(&result, &expected);
            prop_assert_eq!(&seen, &expected_seen);
            prop_assert_eq!(audit.hazards(), []);
        }
    }
}
