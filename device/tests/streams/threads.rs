//! Many host threads at once: no deadlock, no lost update, no torn read.

use device::{Buffer, Placement, Result, Schedule, Stream, StreamOptions, Use};

use crate::common::{WORDS, Words, buffer, each_host_memory, fail, fresh, value};

/// A small generator of numbers (xorshift), so that a run can be repeated.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % bound
    }
}

/// Adds one to `target`, after looking whether what is read is whole.
fn increment(stream: &Stream, reads: &[&Buffer], target: &Buffer) -> Result<()> {
    let sources: Vec<Words> = reads.iter().map(|read| Words::of(read)).collect();
    let words = Words::of(target);
    let uses: Vec<Use<'_>> = reads.iter().map(|read| Use::read(read)).chain([Use::write(target)]).collect();
    stream.launch_host("increment", &uses, move || {
        for words in sources.into_iter().map(Words::get).chain([words.get()]) {
            if words != [words[0]; WORDS] {
                fail("a torn read");
            }
        }
        words.set(words.get().map(|word| word + 1));
    })
}

fn hammer(streams: &[Stream], own: impl Fn(usize, usize) -> usize + Sync) -> Result<()> {
    const THREADS: usize = 4;
    const COMMANDS: usize = 600;
    const BUFFERS: usize = 5;
    let device = streams[0].device().clone();
    let buffers = (0..BUFFERS).map(|i| buffer(&streams[i % streams.len()])).collect::<Result<Vec<_>>>()?;
    let launches = device.sync_stats().launches;
    let written = std::thread::scope(|scope| {
        let work = |thread: usize| {
            let mut random = Random(0x9e37_79b9_7f4a_7c15 ^ (thread as u64 + 1));
            let mut written = [0u64; BUFFERS];
            for _ in 0..COMMANDS {
                let stream = &streams[own(thread, random.below(streams.len()))];
                let target = random.below(BUFFERS);
                let reads: Vec<_> = (0..random.below(4)).map(|_| &buffers[random.below(BUFFERS)]).collect();
                increment(stream, &reads, &buffers[target])?;
                written[target] += 1;
                if random.below(50) == 0 {
                    let whole = buffers[target].download(|bytes| {
                        device::from_bytes::<i64>(bytes).windows(2).all(|pair| pair[0] == pair[1])
                    })?;
                    assert!(whole, "a torn host read");
                }
            }
            Ok(written)
        };
        let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || work(thread))).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|payload| std::panic::resume_unwind(payload)))
            .collect::<Result<Vec<_>>>()
    })?;
    device.synchronize()?;
    for (index, buffer) in buffers.iter().enumerate() {
        assert_eq!(value(buffer)?, written.iter().map(|counts| counts[index]).sum::<u64>());
    }
    assert_eq!(device.sync_stats().launches - launches, (THREADS * COMMANDS) as u64);
    Ok(())
}

#[test]
fn threads_share_every_stream() -> Result<()> {
    each_host_memory(|dev| {
        let mut streams = vec![dev.default_stream()];
        streams.extend((0..3).map(|_| dev.new_stream()).collect::<Result<Vec<_>>>()?);
        hammer(&streams, |_, any| any)
    })
}

#[test]
fn each_thread_has_its_stream() -> Result<()> {
    each_host_memory(|dev| {
        let mut streams = vec![dev.default_stream()];
        streams.extend((0..3).map(|_| dev.new_stream()).collect::<Result<Vec<_>>>()?);
        hammer(&streams, |thread, _| thread)
    })
}

#[test]
fn each_thread_runs_its_stream_itself() -> Result<()> {
    let dev = fresh(Schedule::Inline);
    let options = StreamOptions { placement: Placement::Caller, ..StreamOptions::default() };
    let streams = (0..4).map(|_| dev.new_stream_with(options)).collect::<Result<Vec<_>>>()?;
    hammer(&streams, |thread, _| thread)?;
    hammer(&streams, |_, any| any)
}

#[test]
fn threads_share_one_inline_stream() -> Result<()> {
    each_host_memory(|dev| hammer(&[dev.default_stream()], |_, any| any))
}

#[test]
fn streams_come_and_go_beside_launches() -> Result<()> {
    each_host_memory(|dev| {
        let main = dev.default_stream();
        let shared = buffer(&main)?;
        std::thread::scope(|scope| {
            let work = || -> Result<()> {
                for _ in 0..40 {
                    let side = dev.new_stream()?;
                    let own = buffer(&side)?;
                    increment(&side, &[&own], &shared)?;
                    increment(&main, &[&shared], &own)?;
                    dev.sync_stats();
                }
                Ok(())
            };
            let threads: Vec<_> = (0..3).map(|_| scope.spawn(work)).collect();
            threads.into_iter().for_each(|thread| assert!(matches!(thread.join(), Ok(Ok(())))));
        });
        assert_eq!(value(&shared)?, 120);
        dev.synchronize()
    })
}
