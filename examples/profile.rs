//! Profiles a small training loop: where its time goes, what it waits for, and what would help.
//!
//! `cargo run --release --example profile` prints tables and writes to the folder for temporary files `profile.html`, a page for
//! any browser, and `profile.json` for <https://ui.perfetto.dev>.

use streamgrad::Result;
use streamgrad::prelude::*;
use streamgrad::profile::{Key, ProfileSchedule, diagnose, report::Report};

/// The profile of some steps, and the last loss.
fn train(dev: &Device) -> Result<(Profile, f32)> {
    let model = mlp(&[64, 256, 10], 7, dev)?;
    let mut sgd = Sgd::new(model.parameters(), 0.1)?;
    let options = LoaderOptions { batch: 64, seed: 7, device: dev.clone(), ..LoaderOptions::default() };
    let loader = DataLoader::new(Digits::load()?, options)?;
    let mut batches = loader.epoch(0);
    // Two steps are left out and one is forgotten; then six are kept.
    let schedule = ProfileSchedule { wait: 2, warmup: 1, active: 6, repeat: 1 };
    let profiler = Profile::start(dev, ProfileOptions { schedule, ..ProfileOptions::default() })?;
    let mut last = None;
    for _ in 0..9 {
        let Some(batch) = profiler.range("load", || batches.next()).transpose()? else { break };
        let logits = profiler.range("forward", || model.forward(&batch.input()))?;
        let loss = cross_entropy(&logits, &batch.labels)?;
        let gradients = profiler.range("backward", || loss.backward())?;
        profiler.range("optimizer", || sgd.step(&gradients))?;
        last = Some(loss);
        profiler.step();
    }
    let profile = profiler.stop()?;
    let loss = last.map(|loss| loss.value().item::<f32>()).transpose()?;
    Ok((profile, loss.unwrap_or(f32::NAN)))
}

/// Prints what the profile says.
fn show(profile: &Profile) {
    println!("{}", profile.key_averages());
    println!("{}", profile.key_averages_by(Key::Range));
    println!("{}", profile.critical_path());
    for stream in profile.idle() {
        println!("{}: busy for {:.3} ms, idle for {:.3} ms", stream.name, stream.busy_ms, stream.idle_ms);
    }
    for finding in diagnose(profile) {
        println!("{}: {} ({:.3} ms a step)", finding.code, finding.message, finding.cost_ms);
    }
}

/// Runs the example.
///
/// # Errors
/// What training answers, and `Io` if the trace cannot be written.
pub(crate) fn main() -> Result<()> {
    let (profile, loss) = train(&Device::best())?;
    show(&profile);
    println!("loss {loss:.3} after 9 steps");
    profile.write_trace(std::env::temp_dir().join("profile.json"))?;
    let page = Report::new("Six steps").about("Digits, 64-256-10").profile("train", &profile);
    page.write(std::env::temp_dir().join("profile.html"))?;
    assert_eq!(profile.steps(), 6);
    let ranges = profile.key_averages_by(Key::Range);
    assert!(ranges.get("backward").is_some_and(|backward| backward.calls == 6));
    Ok(())
}
