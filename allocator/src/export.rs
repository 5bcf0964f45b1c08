//! A picture of memory for other programs: as JSON, and as the pickle that PyTorch's memory_viz page opens.

use serde_json::{Value, json};

use crate::history::{Action, HistoryEntry};
use crate::{AllocatorConfig, BlockState, MemoryStats, Snapshot};

/// Blocks of a segment smaller than this are what PyTorch calls a small pool's.
const LARGE_SEGMENT: usize = 2 << 20;

/// Everything that is known of a device's memory at one time.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct MemoryReport {
    /// Counts and peaks.
    pub stats: MemoryStats,
    /// The settings.
    pub config: AllocatorConfig,
    /// All segments and blocks.
    pub snapshot: Snapshot,
    /// What happened, in order, if a history is kept.
    pub history: Vec<HistoryEntry>,
}

impl MemoryReport {
    /// As JSON: `stats`, `config`, `segments` with their `blocks` and these with their `uses`, and `history`. Addresses
    /// and sizes are in bytes; `home` and the streams of uses are stream numbers.
    pub fn to_json(&self) -> String {
        let stats = &self.stats;
        let segments = self.snapshot.segments.iter().map(|segment| {
            let blocks = segment.blocks.iter().map(|block| {
                let uses = block.uses.iter().map(|used| json!({"stream": used.stream.as_u64(), "tick": used.tick}));
                let [state, _] = names_of_state(block.state);
                json!({"address": block.address, "bytes": block.bytes, "state": state, "uses": uses.collect::<Value>()})
            });
            json!({
                "address": segment.address,
                "bytes": segment.bytes,
                "home": segment.home.as_u64(),
                "pool": segment.pool,
                "blocks": blocks.collect::<Value>(),
            })
        });
        let history = self.history.iter().map(|entry| {
            json!({
                "sequence": entry.sequence,
                "time_us": entry.time_us,
                "action": names_of_action(entry.action).0,
                "address": entry.address,
                "bytes": entry.bytes,
                "stream": entry.stream.as_u64(),
            })
        });
        json!({
            "stats": {
                "allocated_bytes": stats.allocated_bytes,
                "peak_allocated_bytes": stats.peak_allocated_bytes,
                "reserved_bytes": stats.reserved_bytes,
                "peak_reserved_bytes": stats.peak_reserved_bytes,
                "pending_bytes": stats.pending_bytes,
                "cached_bytes": stats.cached_bytes,
                "limit_bytes": stats.limit_bytes,
                "live_blocks": stats.live_blocks,
                "peak_live_blocks": stats.peak_live_blocks,
                "allocations": stats.allocations,
                "frees": stats.frees,
                "total_allocated_bytes": stats.total_allocated_bytes,
                "total_freed_bytes": stats.total_freed_bytes,
                "segments": stats.segments,
                "free_blocks": stats.free_blocks,
                "largest_free_bytes": stats.largest_free_bytes,
                "fragmentation": stats.fragmentation(),
                "driver_allocations": stats.driver_allocations,
                "driver_refusals": stats.driver_refusals,
                "driver_frees": stats.driver_frees,
                "polls": stats.polls,
                "waits": stats.waits,
                "host_waits": stats.host_waits,
                "borrowed": stats.borrowed,
                "out_of_memory": stats.out_of_memory,
                "pinned_bytes": stats.outside.pinned_bytes,
                "code_bytes": stats.outside.code_bytes,
                "library_bytes": stats.outside.library_bytes,
            },
            "config": self.config_tree(),
            "segments": segments.collect::<Value>(),
            "history": history.collect::<Value>(),
        })
        .to_string()
    }

    /// As a pickle that <https://pytorch.org/memory_viz> opens. `segments` and `device_traces` are PyTorch's; a block that
    /// is free but may still be used is `active_pending_free`. Sizes are those of blocks, and a free counts as completed
    /// when it was asked for, since it waits for nothing.
    pub fn to_memory_viz(&self) -> Vec<u8> {
        let segments = self.snapshot.segments.iter().map(|segment| {
            let of = |wanted: &[BlockState]| -> usize {
                let blocks = segment.blocks.iter().filter(|block| wanted.contains(&block.state));
                blocks.map(|block| block.bytes).sum()
            };
            let allocated = of(&[BlockState::Live]);
            let blocks = segment.blocks.iter().map(|block| {
                let [_, state] = names_of_state(block.state);
                json!({
                    "address": block.address,
                    "size": block.bytes,
                    "requested_size": if block.state == BlockState::Live { block.bytes } else { 0 },
                    "state": state,
                    "frames": [],
                })
            });
            json!({
                "device": 0,
                "address": segment.address,
                "total_size": segment.bytes,
                "allocated_size": allocated,
                "active_size": allocated + of(&[BlockState::Pending]),
                "requested_size": allocated,
                "stream": segment.home.as_u64(),
                "segment_type": if segment.bytes < LARGE_SEGMENT { "small" } else { "large" },
                "segment_pool_id": [0, segment.pool.unwrap_or(0)],
                "is_expandable": false,
                "frames": [],
                "blocks": blocks.collect::<Value>(),
            })
        });
        let traces = self.history.iter().flat_map(|entry| {
            names_of_action(entry.action).1.iter().map(|action| {
                let mut trace = json!({
                    "action": action,
                    "addr": entry.address,
                    "size": entry.bytes,
                    "stream": entry.stream.as_u64(),
                    "time_us": entry.time_us,
                    "frames": [],
                });
                if let Some(fields) = trace.as_object_mut().filter(|_| entry.action == Action::OutOfMemory) {
                    fields.insert("device_free".to_owned(), json!(0));
                }
                trace
            })
        });
        crate::pickle::pickle(&json!({
            "segments": segments.collect::<Value>(),
            "device_traces": [traces.collect::<Value>()],
            "allocator_settings": self.config_tree(),
            "external_annotations": [],
        }))
    }

    fn config_tree(&self) -> Value {
        json!({
            "deterministic": self.config.deterministic,
            "release_threshold": self.config.release_threshold,
            "reuse": format!("{:?}", self.config.reuse),
            "limit_bytes": self.stats.limit_bytes,
        })
    }
}

/// A state in JSON, and PyTorch's name for it.
fn names_of_state(state: BlockState) -> [&'static str; 2] {
    match state {
        BlockState::Live => ["live", "active_allocated"],
        BlockState::Pending => ["pending", "active_pending_free"],
        BlockState::Cached => ["cached", "inactive"],
    }
}

/// An action in JSON, and PyTorch's names for what it stands for.
fn names_of_action(action: Action) -> (&'static str, &'static [&'static str]) {
    match action {
        Action::Allocate => ("allocate", &["alloc"]),
        Action::Free => ("free", &["free_requested", "free_completed"]),
        Action::Obtain => ("obtain", &["segment_map"]),
        Action::Release => ("release", &["segment_unmap"]),
        Action::OutOfMemory => ("out_of_memory", &["oom"]),
    }
}
