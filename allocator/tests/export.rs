//! What other programs get to see: JSON, and the pickle of PyTorch's memory_viz page.
#![allow(clippy::unwrap_used)]

use std::io::Write as _;
use std::process::{Command, Stdio};

use allocator::{Action, DeviceMemory, MemoryReport, PrivatePool, allocate};
use device::{CpuConfig, Device, Use};

/// A device with live, pending and cached blocks, a private pool and a history. The guard keeps the pending ones pending.
fn scene() -> (Device, Vec<device::Buffer>, device::Hold, PrivatePool) {
    let dev = Device::cpu_with(CpuConfig::default());
    dev.record_memory_history(1000);
    let (main, side) = (dev.default_stream(), dev.new_stream().unwrap());
    let hold = side.hold();
    let mut live = vec![allocate(&main, 100_000).unwrap(), allocate(&side, 5000).unwrap()];
    let pending = allocate(&main, 70_000).unwrap();
    live.push(allocate(&main, 300).unwrap());
    side.launch_host("read", &[Use::write(&pending)], || ()).unwrap();
    drop(pending);
    drop(allocate(&main, 40_000).unwrap());
    let pool = PrivatePool::new(&dev).unwrap();
    {
        let _serving = pool.serve(&main).unwrap();
        live.push(allocate(&main, 3_000_000).unwrap());
    }
    dev.set_memory_limit(Some(20 << 20));
    allocate(&main, 100 << 20).unwrap_err();
    (dev, live, hold, pool)
}

/// What a program can add up from an export: reserved, live, pending and cached bytes, and blocks that are live.
fn expected(report: &MemoryReport) -> [u64; 5] {
    let stats = report.stats;
    assert!(stats.pending_bytes > 0 && stats.cached_bytes > 0 && stats.live_blocks == 4);
    let bytes = [stats.reserved_bytes, stats.allocated_bytes, stats.pending_bytes, stats.cached_bytes];
    [bytes[0] as u64, bytes[1] as u64, bytes[2] as u64, bytes[3] as u64, stats.live_blocks]
}

#[test]
fn json_says_what_there_is() {
    let (dev, _live, hold, pool) = scene();
    let report = dev.memory_report().unwrap();
    let json: serde_json::Value = serde_json::from_str(&report.to_json()).unwrap();
    let mut found = [0; 5];
    for segment in json["segments"].as_array().unwrap() {
        found[0] += segment["bytes"].as_u64().unwrap();
        for block in segment["blocks"].as_array().unwrap() {
            let place = match block["state"].as_str().unwrap() {
                "live" => 1,
                "pending" => 2,
                _ => 3,
            };
            found[place] += block["bytes"].as_u64().unwrap();
            found[4] += u64::from(place == 1);
            assert!(place != 2 || block["uses"][0]["tick"].as_u64().is_some());
        }
    }
    assert_eq!(found, expected(&report));
    assert_eq!(json["stats"]["reserved_bytes"].as_u64(), Some(found[0]));
    assert_eq!(json["config"]["limit_bytes"].as_u64(), Some(20 << 20));
    assert!(json["segments"].as_array().unwrap().iter().any(|segment| segment["pool"] == pool.id()));
    drop(hold);
    dev.synchronize().unwrap();
}

#[test]
fn the_history_replays_to_what_is_live() {
    let (dev, live, hold, _pool) = scene();
    let report = dev.memory_report().unwrap();
    let (mut blocks, mut reserved) = (std::collections::BTreeMap::new(), 0);
    for entry in &report.history {
        match entry.action {
            Action::Allocate => assert_eq!(blocks.insert(entry.address, entry.bytes), None),
            Action::Free => assert_eq!(blocks.remove(&entry.address), Some(entry.bytes)),
            Action::Obtain => reserved += entry.bytes,
            Action::Release => reserved -= entry.bytes,
            _ => assert_eq!(entry.bytes, 100 << 20),
        }
    }
    let mut addresses: Vec<usize> = live.iter().map(|buffer| buffer.ptr().addr()).collect();
    addresses.sort_unstable();
    assert_eq!(blocks.keys().copied().collect::<Vec<_>>(), addresses);
    assert_eq!(blocks.values().sum::<usize>(), report.stats.allocated_bytes);
    assert_eq!(reserved, report.stats.reserved_bytes);
    assert!(report.history.windows(2).all(|pair| pair[0].sequence < pair[1].sequence));
    drop(hold);
    dev.record_memory_history(0);
    assert!(dev.memory_report().unwrap().history.is_empty());
}

/// Python adds up what the page would show.
const ADD_UP: &str = "
import pickle, sys
d = pickle.load(sys.stdin.buffer)
assert sorted(d) == ['allocator_settings', 'device_traces', 'external_annotations', 'segments'], sorted(d)
states = {'active_allocated': 0, 'active_pending_free': 0, 'inactive': 0}
reserved = live = 0
for s in d['segments']:
    at = s['address']
    for b in s['blocks']:
        assert b['address'] == at and isinstance(b['frames'], list)
        at += b['size']
        states[b['state']] += b['size']
        live += b['state'] == 'active_allocated'
    assert at == s['address'] + s['total_size']
    assert s['allocated_size'] == sum(b['size'] for b in s['blocks'] if b['state'] == 'active_allocated')
    assert s['active_size'] == s['total_size'] - sum(b['size'] for b in s['blocks'] if b['state'] == 'inactive')
    assert s['segment_type'] in ('small', 'large') and type(s['stream']) is int and type(s['device']) is int
    reserved += s['total_size']
size = {}
for t in d['device_traces'][0]:
    if t['action'] == 'alloc': size[t['addr']] = t['size']
    elif t['action'] == 'free_completed': del size[t['addr']]
assert sum(size.values()) == states['active_allocated']
assert [t['size'] for t in d['device_traces'][0] if t['action'] == 'oom'] == [100 << 20]
assert d['allocator_settings']['deterministic'] is False and d['allocator_settings']['release_threshold'] is None
print(reserved, *states.values(), live)
";

#[test]
fn python_reads_the_pickle() {
    let (dev, _live, hold, _pool) = scene();
    let report = dev.memory_report().unwrap();
    let python =
        Command::new("python3").args(["-c", ADD_UP]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let Ok(mut python) = python else {
        eprintln!("SKIPPED: there is no python3 to read the pickle with");
        return;
    };
    python.stdin.take().unwrap().write_all(&report.to_memory_viz()).unwrap();
    let output = python.wait_with_output().unwrap();
    assert!(output.status.success());
    let found: Vec<u64> = String::from_utf8(output.stdout)
        .unwrap()
        .split_whitespace()
        .map(|word| word.parse().unwrap())
        .collect();
    assert_eq!(found, expected(&report));
    drop(hold);
    dev.synchronize().unwrap();
}
