use std::sync::Mutex;
use std::sync::atomic::AtomicU32;

use smallvec::SmallVec;

use super::*;
use crate::cuda::Queue;
use crate::{Binder, CpuConfig, Device, Result, Work};

/// Notes when it runs, and splits a part of itself over whoever helps.
struct Noted {
    number: usize,
    order: Arc<Mutex<Vec<usize>>>,
    parts: usize,
    fails: bool,
}

impl Work for Noted {
    fn run(&self, cpu: &Cpu<'_>) {
        let done = AtomicU32::new(0);
        match cpu.team(1 << 20).filter(|_| self.parts > 1) {
            Some(team) => {
                team.share(team.helpers(), &|_| {
                    while done.fetch_add(1, Ordering::Relaxed) < self.parts as u32 {
                        std::hint::spin_loop();
                    }
                });
            }
            None => done.store(self.parts as u32, Ordering::Relaxed),
        }
        assert!(done.load(Ordering::Relaxed) >= self.parts as u32);
        self.order.lock().unwrap().push(self.number);
        assert!(!self.fails, "no");
    }

    fn enqueue(&self, _: &Queue<'_>) -> Result<()> {
        Ok(())
    }

    fn bind(&mut self, _: &mut dyn Binder) {}
}

/// Commands of which each needs some of those before it.
fn nodes(seed: u64, count: usize, order: &Arc<Mutex<Vec<usize>>>, failing: Option<usize>) -> Vec<Node> {
    let mut random = SplitMix(seed);
    let mut nodes: Vec<Node> = Vec::new();
    for number in 0..count {
        let mut needs: SmallVec<[u32; 4]> = SmallVec::new();
        for _ in 0..random.below(4).min(number) {
            let need = random.below(number) as u32;
            if !needs.contains(&need) {
                needs.push(need);
                nodes[need as usize].next.push(number as u32);
            }
        }
        let work = Noted {
            number,
            order: Arc::clone(order),
            parts: 1 + 40 * random.below(2),
            fails: failing == Some(number),
        };
        nodes.push(Node {
            op: "noted",
            work: Box::new(work),
            needs,
            next: SmallVec::new(),
            left: AtomicU32::new(0),
            urgency: random.below(100) as u64,
            traced: Vec::new(),
        });
    }
    nodes
}

#[test]
fn every_command_runs_once_and_after_what_it_needs() {
    for threads in [1, 2, 4] {
        let device = Device::cpu_with(CpuConfig { threads: Some(threads), ..CpuConfig::default() });
        for seed in 0..60 {
            let order = Arc::default();
            let nodes = nodes(seed, 50, &order, None);
            let mut helpers = Helpers::new();
            for _ in 0..3 {
                order.lock().unwrap().clear();
                Step { nodes: &nodes, times: None, traced: None }.run(
                    8,
                    &Cpu::new(device.core(), threads),
                    &mut helpers,
                );
                let order = order.lock().unwrap().clone();
                let place = |number: usize| order.iter().position(|&other| other == number).unwrap();
                assert_eq!(order.len(), nodes.len());
                for (number, node) in nodes.iter().enumerate() {
                    assert!(node.needs.iter().all(|&need| place(need as usize) < place(number)), "{order:?}");
                }
            }
        }
    }
}

#[test]
fn a_command_that_panics_is_named_and_the_others_run() {
    for threads in [1, 3] {
        let device = Device::cpu_with(CpuConfig { threads: Some(threads), ..CpuConfig::default() });
        let order = Arc::default();
        let nodes = nodes(7, 20, &order, Some(3));
        let caught = Panicked::catch(|| {
            Step { nodes: &nodes, times: None, traced: None }.run(
                8,
                &Cpu::new(device.core(), threads),
                &mut Helpers::new(),
            )
        });
        assert_eq!(caught.err().map(|panicked| panicked.message), Some("noted: no".into()));
        assert_eq!(order.lock().unwrap().len(), 20);
    }
}
