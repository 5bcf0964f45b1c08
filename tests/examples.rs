//! Every example does what it says: it runs, and what it asserts holds.
#![allow(clippy::unwrap_used)]

mod common;

use clap::Parser;
use common::folder::Folder;
use streamgrad::Result;

#[path = "../examples/captured_step.rs"]
mod captured_step;
#[allow(dead_code, reason = "its main reads the command line")]
#[path = "../examples/char_gpt.rs"]
mod char_gpt;
#[path = "../examples/cnn_digits.rs"]
mod cnn_digits;
#[path = "../examples/compare_my_step.rs"]
mod compare_my_step;
#[path = "../examples/custom_kernel.rs"]
mod custom_kernel;
#[path = "../examples/custom_op.rs"]
mod custom_op;
#[path = "../examples/custom_optimizer.rs"]
mod custom_optimizer;
#[path = "../examples/digits_mlp.rs"]
mod digits_mlp;
#[path = "../examples/dqn.rs"]
mod dqn;
#[path = "../examples/gru_text.rs"]
mod gru_text;
#[path = "../examples/pipeline.rs"]
mod pipeline;
#[path = "../examples/profile.rs"]
mod profile;
#[path = "../examples/ranks.rs"]
mod ranks;
#[path = "../examples/two_lanes.rs"]
mod two_lanes;

#[test]
fn every_example_is_here() {
    for entry in std::fs::read_dir("examples").unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(include_str!("examples.rs").contains(&format!("../examples/{name}\"]")), "{name}");
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
