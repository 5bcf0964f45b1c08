//! What other programs take of the machine's processors.

use std::fs;

use ::profile::OtherPrograms;

/// What the system has counted so far, in its own ticks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ticks {
    processors: u64,
    /// Of all processors together.
    all: u64,
    busy: u64,
    /// Of this process.
    own: u64,
}

/// In fewer ticks of a processor there is nothing to be seen.
const LONG: u64 = 30;

impl Ticks {
    /// `None` where the system does not say, as on all but Linux.
    pub(super) fn now() -> Option<Ticks> {
        Ticks::parse(&fs::read_to_string("/proc/stat").ok()?, &fs::read_to_string("/proc/self/stat").ok()?)
    }

    /// From the first line of all processors, with the columns user, nice, system, idle, waiting for a disk, two kinds of
    /// interrupts, and stolen by other machines; and from the columns user and system behind the name of the process.
    fn parse(machine: &str, process: &str) -> Option<Ticks> {
        let numbers = |text: &str, skip, take| -> Option<Vec<u64>> {
            let words: Vec<&str> = text.split_whitespace().skip(skip).take(take).collect();
            (words.len() == take).then_some(())?;
            words.into_iter().map(|word| word.parse().ok()).collect()
        };
        let columns = numbers(machine.lines().next()?, 1, 8)?;
        let all = columns.iter().sum();
        Some(Ticks {
            processors: machine.lines().skip(1).filter(|line| line.starts_with("cpu")).count() as u64,
            all,
            busy: all - columns[3] - columns[4],
            own: numbers(process.rsplit_once(')')?.1, 11, 2)?.iter().sum(),
        })
    }

    /// What others have had from `self` to `end`; `None` if that was not long.
    pub(super) fn others_until(self, end: Ticks) -> Option<OtherPrograms> {
        let since = |what: fn(&Ticks) -> u64| what(&end).saturating_sub(what(&self));
        let (all, processors) = (since(|ticks| ticks.all), end.processors as f64);
        let others = since(|ticks| ticks.busy).saturating_sub(since(|ticks| ticks.own));
        let taken = processors * others as f64 / all as f64;
        (all > LONG * end.processors).then_some(OtherPrograms { processors, taken })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_others_is_what_is_neither_idle_nor_own() {
        let machine = |user: u64, idle: u64| {
            format!(
                "cpu  {user} 100 30 {idle} 5 0 2 3 9 9\ncpu0 1 2 3 4 5 6 7 8\ncpu1 1 2 3 4 5 6 7 8\nintr 1\n"
            )
        };
        let process = |user: u64| format!("7 (a (b) c) R 1 2 3 4 5 6 7 8 9 10 {user} 40 0 0 20\n");
        let ticks = |user, idle, own| Ticks::parse(&machine(user, idle), &process(own)).expect("whole");
        let begin = ticks(1000, 2000, 300);
        // 400 ticks of two processors: 300 at work, 100 of these for this process.
        let others = begin.others_until(ticks(1300, 2100, 400));
        assert_eq!(others, Some(OtherPrograms { processors: 2.0, taken: 1.0 }));
        assert_eq!(begin.others_until(ticks(1030, 2030, 300)), None, "too short");
        assert!(Ticks::parse("cpu  1 2 3\n", &process(1)).is_none());
        assert!(Ticks::parse(&machine(1, 1), "7 (name R 1").is_none());
    }

    /// A loop of a shell on each processor.
    #[test]
    #[cfg(target_os = "linux")]
    fn other_programs_are_seen() -> std::io::Result<()> {
        let begin = Ticks::now().expect("Linux says");
        let spin = || std::process::Command::new("sh").args(["-c", "while :; do :; done"]).spawn();
        let mut loops = (0..begin.processors).map(|_| spin()).collect::<std::io::Result<Vec<_>>>()?;
        std::thread::sleep(std::time::Duration::from_millis(600));
        let end = Ticks::now().expect("Linux says");
        loops.iter_mut().try_for_each(|looping| looping.kill().and_then(|()| looping.wait().map(drop)))?;
        let others = begin.others_until(end).expect("long enough");
        assert!(others.taken > 0.5 * others.processors, "{others:?}");
        Ok(())
    }
}
