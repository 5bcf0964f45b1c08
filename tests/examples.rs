//! Every example does what it says: it runs, and what it asserts holds.
#![allow(clippy::unwrap_used)]
#![allow(dead_code, reason = "a test has less time than the main function of an example that trains long")]

mod common;

use clap::Parser;
use common::folder::Folder;
use streamgrad::Result;

#[path = "../examples/captured_step.rs"]
mod captured_step;
#[path = "../examples/char_gpt.rs"]
mod char_gpt;
#[path = "../examples/cnn_digits.rs"]
mod cnn_digits;
#[path = "../examples/compare_my_step.rs"]
mod compare_my_step;
#[path = "../examples/csv_regression.rs"]
mod csv_regression;
#[path = "../examples/custom_kernel.rs"]
mod custom_kernel;
#[path = "../examples/custom_op.rs"]
mod custom_op;
#[path = "../examples/custom_optimizer.rs"]
mod custom_optimizer;
#[path = "../examples/digits_mlp.rs"]
mod digits_mlp;
#[path = "../examples/distillation.rs"]
mod distillation;
#[path = "../examples/dqn.rs"]
mod dqn;
#[path = "../examples/fine_tune.rs"]
mod fine_tune;
#[path = "../examples/gan.rs"]
mod gan;
#[path = "../examples/gru_text.rs"]
mod gru_text;
#[path = "../examples/pinn.rs"]
mod pinn;
#[path = "../examples/pipeline.rs"]
mod pipeline;
#[path = "../examples/profile.rs"]
mod profile;
#[path = "../examples/ranks.rs"]
mod ranks;
#[path = "../examples/resnet.rs"]
mod resnet;
#[path = "../examples/siamese.rs"]
mod siamese;
#[path = "../examples/two_lanes.rs"]
mod two_lanes;
#[path = "../examples/vae.rs"]
mod vae;
#[path = "../examples/vit.rs"]
mod vit;

/// Programs that stand beside the same one in PyTorch, `examples/peers/NAME.py`.
const TWINS: [&str; 13] = [
    "csv_regression",
    "custom_kernel",
    "custom_op",
    "distillation",
    "dqn",
    "fine_tune",
    "gan",
    "gru_text",
    "pinn",
    "resnet",
    "siamese",
    "vae",
    "vit",
];

/// The lines of a program that are neither blank nor comments nor, in Python, docstrings.
fn code_lines(program: &str) -> usize {
    let text = std::fs::read_to_string(program).unwrap();
    let comment = if program.ends_with(".py") { "#" } else { "//" };
    // Whether the triple-quoted string that a line begins in is a docstring.
    let mut string = None;
    let is_code = |line: &&str| {
        let docstring = string.unwrap_or(line.starts_with("\"\"\""));
        if line.matches("\"\"\"").count() % 2 == 1 {
            string = if string.is_none() { Some(docstring) } else { None };
        }
        !docstring && !line.is_empty() && !line.starts_with(comment)
    };
    text.lines().map(str::trim).filter(is_code).count()
}

#[test]
fn programs_are_about_as_long_as_in_pytorch() {
    for name in TWINS {
        let ours = code_lines(&format!("examples/{name}.rs"));
        let peer = code_lines(&format!("examples/peers/{name}.py"));
        println!("{name}: {ours} lines, {peer} in PyTorch");
        assert!(10 * ours <= 13 * peer, "{name} has {ours} lines, {peer} in PyTorch");
    }
}

#[test]
fn every_example_is_here() {
    for entry in std::fs::read_dir("examples").unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(
            name == "peers" || include_str!("examples.rs").contains(&format!("../examples/{name}\"]")),
            "{name}"
        );
    }
}

#[test]
fn a_gpt_learns_and_goes_on_from_a_checkpoint_as_if_it_had_not_stopped() -> Result<()> {
    let folder = Folder::new("char-gpt");
    let (text, state) = (folder.file("text"), folder.file("state"));
    std::fs::write(&text, "a stream waits for nobody; ".repeat(100)).unwrap();
    let train = |steps: &str, more: &[&str]| {
        char_gpt::train(&char_gpt::Args::parse_from(
            [&["char_gpt", &text, "--prompt", "a stream ", "--steps", steps], more].concat(),
        ))
    };
    let untrained = train("0", &[])?;
    train("10", &["--checkpoint", &state])?;
    let resumed = train("20", &["--checkpoint", &state])?;
    assert_eq!(train("20", &[])?.to_bits(), resumed.to_bits());
    assert!(resumed < 0.7 * untrained, "{resumed} after {untrained}");
    Ok(())
}

#[test]
fn a_captured_step_equals_the_eager_one() -> Result<()> {
    captured_step::main()
}

#[test]
fn gated_recurrent_units_learn_a_text() -> Result<()> {
    let (loss, written) = gru_text::train(120)?;
    assert!(loss < 0.5, "{loss}: {written}");
    assert!(written.starts_with("the quick brown fox jumps"), "{loss}: {written}");
    Ok(())
}

#[test]
fn an_agent_learns_the_way_to_the_end() -> Result<()> {
    let values = streamgrad::with_generator(streamgrad::Generator::new(3), || dqn::train(1000))?;
    let goes_right = |place: &[f32]| place[1] > place[0];
    assert!(values.chunks(2).all(goes_right), "{values:?}");
    Ok(())
}

#[test]
fn stages_at_once_give_what_they_give_one_after_the_other() -> Result<()> {
    pipeline::main()
}

#[test]
fn a_training_loop_is_profiled() -> Result<()> {
    profile::main()
}

#[test]
fn a_cnn_learns_the_digits() -> Result<()> {
    cnn_digits::main()
}

#[test]
fn a_custom_kernel() -> Result<()> {
    custom_kernel::main()
}

#[test]
fn a_custom_op() -> Result<()> {
    custom_op::main()
}

#[test]
fn a_custom_optimizer() -> Result<()> {
    custom_optimizer::main()
}

#[test]
fn the_digits() -> Result<()> {
    digits_mlp::main()
}

#[test]
fn ranks_equal_one_process() -> Result<()> {
    ranks::main()
}

#[test]
fn a_step_is_compared_on_all_schedules() -> Result<()> {
    compare_my_step::main()
}

#[test]
fn two_lanes_equal_one() -> Result<()> {
    two_lanes::main()
}

#[test]
fn a_resnet_resumes_with_the_bits_of_a_whole_run() -> Result<()> {
    let folder = Folder::new("resnet");
    let accuracy = resnet::run(&folder.0)?;
    assert!(accuracy > 0.9, "{accuracy}");
    Ok(())
}

#[test]
fn an_autoencoder_compresses_the_digits() -> Result<()> {
    let (first, last) = (vae::train(1)?, vae::train(8)?);
    assert!(last < 0.8 * first, "{last} after {first}");
    Ok(())
}

#[test]
fn a_generator_learns_a_circle() -> Result<()> {
    let (mean, deviation) = gan::train(1000)?;
    assert!((mean - 1.0).abs() < 0.1 && deviation < 0.2, "{mean} ± {deviation}");
    Ok(())
}

#[test]
fn a_network_solves_a_differential_equation() -> Result<()> {
    let error = pinn::train(1500)?;
    assert!(error < 0.05, "{error}");
    Ok(())
}

#[test]
fn a_vision_transformer_learns_in_bf16() -> Result<()> {
    let accuracy = vit::train(5)?;
    assert!(accuracy > 0.8, "{accuracy}");
    Ok(())
}

#[test]
fn a_siamese_network_tells_digits_apart() -> Result<()> {
    let accuracy = siamese::train(5)?;
    assert!(accuracy > 0.9, "{accuracy}");
    Ok(())
}

#[test]
fn a_new_head_learns_on_loaded_weights() -> Result<()> {
    let folder = Folder::new("fine-tune");
    let accuracy = fine_tune::run(&folder.0.join("weights.safetensors"), 10)?;
    assert!(accuracy > 0.8, "{accuracy}");
    Ok(())
}

#[test]
fn a_network_learns_prices_from_a_table() -> Result<()> {
    let folder = Folder::new("csv-regression");
    let explained = csv_regression::train(&folder.0.join("houses.csv"), 10)?;
    assert!(explained > 0.9, "{explained}");
    Ok(())
}

#[test]
fn a_student_learns_from_its_teacher() -> Result<()> {
    let (teacher, student) = distillation::run(10)?;
    assert!(teacher > 0.95 && student > 0.9, "{teacher} and {student}");
    Ok(())
}
