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
        let mut stats = json!(self.stats);
        stats["fragmentation"] = json!(self.stats.fragmentation());
        json!({
            "stats": stats,
            "config": self.config_tree(),
            "segments": self.snapshot.segments,
            "history": self.history,
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
                json!({
                    "address": block.address,
                    "size": block.bytes,
                    "requested_size": if block.state == BlockState::Live { block.bytes } else { 0 },
                    "state": name_of(block.state),
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
            names_of(entry.action).iter().map(|action| {
                let mut trace = json!({
                    "action": action,
                    "addr": entry.address,
                    "size": entry.bytes,
                    "stream": entry.stream.as_u64(),
                    "time_us": entry.time_us,
                    "frames": [],
                });
                if entry.action == Action::OutOfMemory {
                    trace["device_free"] = json!(0);
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
        let mut config = json!(self.config);
        config["limit_bytes"] = json!(self.stats.limit_bytes);
        config
    }
}

/// PyTorch's name of a state.
fn name_of(state: BlockState) -> &'static str {
    match state {
        BlockState::Live => "active_allocated",
        BlockState::Pending => "active_pending_free",
        BlockState::Cached => "inactive",
    }
}

/// PyTorch's names for what an action stands for.
fn names_of(action: Action) -> &'static [&'static str] {
    match action {
        Action::Allocate => &["alloc"],
        Action::Free => &["free_requested", "free_completed"],
        Action::Obtain => &["segment_map"],
        Action::Release => &["segment_unmap"],
        Action::OutOfMemory => &["oom"],
    }
}
