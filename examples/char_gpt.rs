//! Trains a small GPT on the characters of a text, two batches at once on two lanes, and lets it write.
//!
//!     cargo run --release --example char_gpt                     # on this repository's own documents
//!     cargo run --release --example char_gpt -- FILE.. --steps 500 --checkpoint gpt.safetensors
//!
//! With a checkpoint that exists already, training goes on where it stopped, as if it had not.

use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Parser;
use streamgrad::{Result, prelude::*};
use workloads::{Gpt, GptOptions};

#[derive(Parser)]
pub(crate) struct Args {
    /// What to read; this repository's documents if there is none.
    files: Vec<PathBuf>,
    /// Steps of training in all.
    #[arg(long, default_value_t = 500)]
    steps: u64,
    /// Where to keep the state of the training.
    #[arg(long)]
    checkpoint: Option<PathBuf>,
    /// What the model goes on with.
    #[arg(long, default_value = "A stream ")]
    prompt: String,
    /// What all random numbers follow from.
    #[arg(long, default_value_t = 7)]
    seed: u64,
}

const CONTEXT: usize = 64;
/// Windows in a lane's batch, and lanes.
const BATCH: usize = 8;
const LANES: usize = 2;
/// Steps between two reports.
const REPORT: u64 = 100;

fn main() -> Result<()> {
    let loss = train(&Args::parse())?;
    println!("\na character of unseen text costs {:.2} bits", loss / std::f64::consts::LN_2);
    Ok(())
}

/// Trains, writes, and returns the loss on text that was not trained on.
pub(crate) fn train(args: &Args) -> Result<f64> {
    let device = Device::best();
    let text = read(&args.files)?;
    let (train, validation) = text.split(0.1)?;
    let options = GptOptions {
        vocabulary: text.vocabulary().len(),
        context: CONTEXT,
        width: 128,
        heads: 4,
        blocks: 2,
        dropout: 0.0,
    };
    let model = Gpt::new(options, args.seed, &device)?;
    let mut adam = AdamW::new(model.parameters(), 2e-3)?;
    let mut progress = checkpoint::Progress { seed: args.seed, ..Default::default() };
    if let Some(path) = args.checkpoint.as_deref().filter(|path| path.exists()) {
        progress = checkpoint::load_training(path, &model, &mut adam)?;
        println!("going on at step {}", progress.step);
    }
    let windows = train.windows(CONTEXT, BATCH, progress.seed)?;
    let held_out = validation.windows(CONTEXT, 32, progress.seed)?;
    println!("{} characters of {} kinds, on {device}", text.len(), text.vocabulary().len());

    let lanes = ConcurrentBatches::new(&device, LANES)?;
    let begin = Instant::now();
    // Windows are cut ahead, where that is faster.
    let (first, on) = (progress.step * LANES as u64, device.clone());
    let mut batches = Prefetch::new(&device, (first..).map(move |number| windows.batch(number, &on)))?;
    while progress.step < args.steps {
        let next = batches.by_ref().take(LANES).collect::<Result<Vec<_>>>()?;
        let step = lanes.step(next, |batch| batch.seeded(|| model.loss(&batch.tokens, &batch.targets)))?;
        adam.step(&step.gradients)?;
        progress.step += 1;
        if progress.step.is_multiple_of(REPORT) || progress.step == args.steps {
            let loss = mean(&step.losses)?;
            let unseen = validation_loss(&model, &held_out, &device)?;
            let seconds = begin.elapsed().as_secs_f64();
            println!("step {:5}  loss {loss:.3}  unseen text {unseen:.3}  {seconds:.1} s", progress.step);
            if let Some(path) = &args.checkpoint {
                checkpoint::save_training(path, &model, &adam, progress)?;
            }
        }
    }
    let written = model.generate(&text.encode(&args.prompt)?, 300, 0.7, args.seed)?;
    println!("\n{}{}", args.prompt, text.decode(&written)?);
    validation_loss(&model, &held_out, &device)
}

/// All files as one text.
fn read(files: &[PathBuf]) -> Result<Text> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let own = ["README.md", "ARCHITECTURE.md", "docs/streams.md"].map(|name| root.join(name));
    let files = if files.is_empty() { &own[..] } else { files };
    let mut all = String::new();
    for file in files {
        let text = Text::read(file)?;
        all.push_str(&text.decode(text.tokens())?);
    }
    Text::new(&all)
}

fn mean(losses: &[Tensor]) -> Result<f64> {
    let mut sum = 0.0;
    for loss in losses {
        sum += f64::from(loss.item::<f32>()?);
    }
    Ok(sum / losses.len() as f64)
}

fn validation_loss(model: &Gpt, windows: &Windows, device: &Device) -> Result<f64> {
    let batch = windows.batch(0, device)?;
    model.set_training(false);
    let loss = no_grad(|| model.loss(&batch.tokens, &batch.targets));
    model.set_training(true);
    Ok(f64::from(loss?.value().item::<f32>()?))
}
