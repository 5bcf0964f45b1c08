//! What is recorded, and when.

/// Options of a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProfileOptions {
    /// Which steps are recorded.
    pub schedule: ProfileSchedule,
    /// Whether the memory that is allocated is followed, too. It takes over the device's
    /// [memory history](allocator::DeviceMemory::record_memory_history).
    pub memory: bool,
    /// Whether the lines of the program that lead to launches and waits are kept, which tables, traces and the diagnosis then name.
    /// It takes some microseconds of the host for each.
    pub places: bool,
}

impl Default for ProfileOptions {
    fn default() -> Self {
        ProfileOptions { schedule: ProfileSchedule::default(), memory: true, places: true }
    }
}

/// Which steps are recorded: `wait` are not, then `warmup` are and are forgotten, then `active` are kept, and so again.
///
/// A step ends where [`Profiler::step`](super::Profiler::step) is called. By default all are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProfileSchedule {
    /// Steps that are left out.
    pub wait: usize,
    /// Steps that are recorded and forgotten: what happens once, as the loading of kernels, falls here.
    pub warmup: usize,
    /// Steps that are kept; 0 for all that follow.
    pub active: usize,
    /// How often; 0 for as long as the program goes on.
    pub repeat: usize,
}

/// What happens in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Off,
    Warmup,
    Active,
}

impl ProfileSchedule {
    /// The phase of the step with this number.
    pub(super) fn phase(self, step: usize) -> Phase {
        let cycle = self.wait.saturating_add(self.warmup).saturating_add(self.active);
        let within = if self.active == 0 { step } else { step % cycle };
        let is_over = self.active > 0 && self.repeat > 0 && step / cycle >= self.repeat;
        if is_over || within < self.wait {
            Phase::Off
        } else if within < self.wait.saturating_add(self.warmup) {
            Phase::Warmup
        } else {
            Phase::Active
        }
    }

    /// Whether another phase, or the same one anew, begins after the step with this number.
    pub(super) fn is_boundary(self, step: usize) -> bool {
        let cycle = self.wait.saturating_add(self.warmup).saturating_add(self.active);
        self.phase(step) != self.phase(step + 1)
            || (self.active > 0 && self.phase(step) == Phase::Active && (step + 1).is_multiple_of(cycle))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn phases(schedule: ProfileSchedule, steps: usize) -> String {
        let letter = |step| match schedule.phase(step) {
            Phase::Off => '.',
            Phase::Warmup => 'w',
            Phase::Active => 'A',
        };
        let mark = |step| if schedule.is_boundary(step) { "|" } else { "" };
        (0..steps).map(|step| format!("{}{}", letter(step), mark(step))).collect()
    }

    #[test]
    fn steps_go_round_as_the_schedule_says() {
        let schedule = |wait, warmup, active, repeat| ProfileSchedule { wait, warmup, active, repeat };
        assert_eq!(phases(ProfileSchedule::default(), 4), "AAAA");
        assert_eq!(phases(schedule(1, 1, 0, 0), 5), ".|w|AAA");
        assert_eq!(phases(schedule(1, 1, 2, 2), 10), ".|w|AA|.|w|AA|..");
        assert_eq!(phases(schedule(0, 1, 1, 0), 4), "w|A|w|A|");
        assert_eq!(phases(schedule(0, 0, 2, 0), 4), "AA|AA|");
        assert_eq!(phases(schedule(0, 0, 2, 1), 4), "AA|..");
    }
}
