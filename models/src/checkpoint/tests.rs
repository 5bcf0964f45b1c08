use std::collections::HashMap;
use std::path::PathBuf;

use autograd::Var;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};

use super::*;
use crate::{
    AdamW, DataLoader, Digits, Forward, Linear, LoaderOptions, Sequential, Sgd, SgdOptions, cross_entropy,
    mlp,
};

/// A file name in the temporary directory that is removed in the end.
struct Temporary(PathBuf);

impl Temporary {
    fn new(name: &str) -> Self {
        let directory = std::env::temp_dir().join(format!("streamgrad-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&directory);
        std::fs::create_dir_all(&directory).unwrap();
        Temporary(directory)
    }
    fn file(&self) -> PathBuf {
        self.0.join("model.safetensors")
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A file's tensors as bytes, and its text.
struct Raw {
    tensors: BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>,
    text: String,
}

impl Raw {
    fn read(path: &Path) -> Raw {
        let bytes = std::fs::read(path).unwrap();
        let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
        let text = header.metadata().as_ref().map_or(String::new(), |entries| entries[METADATA].clone());
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let tensor = |view: TensorView<'_>| (view.dtype(), view.shape().to_vec(), view.data().to_vec());
        Raw { tensors: file.iter().map(|(name, view)| (name.to_owned(), tensor(view))).collect(), text }
    }

    fn write(&self, path: &Path) {
        let view = |(dtype, shape, data): &'_ (Dtype, Vec<usize>, Vec<u8>)| {
            TensorView::new(*dtype, shape.clone(), Box::leak(data.clone().into_boxed_slice())).unwrap()
        };
        let views: Vec<(&String, TensorView<'_>)> =
            self.tensors.iter().map(|(name, tensor)| (name, view(tensor))).collect();
        let metadata = HashMap::from([(METADATA.to_owned(), self.text.clone())]);
        std::fs::write(path, safetensors::serialize(views, Some(metadata)).unwrap()).unwrap();
    }
}

fn bits(model: &dyn Module) -> Vec<u32> {
    let values = |p: &Var| p.value().contiguous().unwrap().to_vec::<f32>().unwrap();
    model.parameters().iter().flat_map(|p| values(p).into_iter().map(f32::to_bits)).collect()
}

fn model(seed: u64) -> Sequential {
    mlp(&[64, 128, 10], seed, &Device::cpu()).unwrap()
}

#[test]
fn parameters_come_back_bit_for_bit_under_torch_names_and_shapes() {
    let place = Temporary::new("round-trip");
    let (saved, loaded) = (model(1), model(2));
    save(place.file(), &saved).unwrap();
    assert_ne!(bits(&saved), bits(&loaded));
    load(place.file(), &loaded).unwrap();
    assert_eq!(bits(&saved), bits(&loaded));

    let bytes = std::fs::read(place.file()).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let mut shapes: Vec<_> =
        file.iter().map(|(name, view)| (name.to_owned(), view.shape().to_vec())).collect();
    shapes.sort();
    let expected = [
        ("0.bias", vec![128]),
        ("0.weight", vec![128, 64]),
        ("2.bias", vec![10]),
        ("2.weight", vec![10, 128]),
    ];
    assert_eq!(shapes, expected.map(|(name, shape)| (name.to_owned(), shape)));
    // Row-major: element [3, 5] of the first weight stands at 3 * 64 + 5.
    let at = (3 * 64 + 5) * 4;
    let in_file = file.tensor("0.weight").unwrap().data()[at..at + 4].to_vec();
    let weight = saved.parameters()[0].value().narrow(0, 3, 1).unwrap().narrow(1, 5, 1).unwrap();
    let value = weight.contiguous().unwrap().to_vec::<f32>().unwrap()[0];
    assert_eq!(in_file, value.to_le_bytes());

    save(place.0.join("again"), &saved).unwrap();
    assert_eq!(std::fs::read(place.0.join("again")).unwrap(), bytes, "the same model gives the same file");
    assert_eq!(std::fs::read_dir(&place.0).unwrap().count(), 2, "no temporary file is left");
}

#[test]
fn every_type_of_element_comes_back() {
    let dev = Device::cpu();
    let tensors = [
        Tensor::from_slice(&[1.5f32, f32::NAN, -0.0], &[3], &dev).unwrap(),
        Tensor::from_slice(&[1.5f64, f64::MIN_POSITIVE], &[2, 1], &dev).unwrap(),
        Tensor::from_slice(&[i64::MIN, 7], &[1, 2], &dev).unwrap(),
        Tensor::from_slice(&[0u8, 255], &[2], &dev).unwrap(),
        Tensor::from_slice(&[true, false], &[2], &dev).unwrap(),
        Tensor::from_slice::<f32>(&[], &[0, 4], &dev).unwrap(),
        Tensor::scalar(2.5f64, &dev).unwrap(),
        Tensor::from_slice(&[1.5f32, f32::NAN, 1e-40, -7.0], &[4], &dev)
            .unwrap()
            .to_dtype(DType::BF16)
            .unwrap(),
        Tensor::from_slice(&[1.5f32, f32::INFINITY, 1e-7], &[3, 1], &dev)
            .unwrap()
            .to_dtype(DType::F16)
            .unwrap(),
    ];
    let place = Temporary::new("types");
    let named: Vec<_> =
        tensors.iter().enumerate().map(|(i, t)| (i.to_string(), t.clone(), Elements::Any)).collect();
    format::write(&place.file(), &named, None).unwrap();
    let file = read(place.file()).unwrap();
    for (number, tensor) in tensors.iter().enumerate() {
        let name = number.to_string();
        let back = file.tensor(&name, &dev).unwrap();
        assert_eq!((file.shape(&name), file.dtype(&name)), (Some(tensor.shape()), Some(tensor.dtype())));
        assert_eq!((back.shape(), back.dtype()), (tensor.shape(), tensor.dtype()));
        assert_eq!(back.to_bytes().unwrap(), tensor.to_bytes().unwrap());
    }
    assert!(file.tensor("none", &dev).is_err() && file.shape("none").is_none());
}

#[test]
fn a_file_that_is_cut_anywhere_is_an_error_and_changes_nothing() {
    let place = Temporary::new("cut");
    let mut optimizer = Sgd::new(model(1).parameters(), SgdOptions::default()).unwrap();
    save_training(place.file(), &model(1), &optimizer, Progress::default()).unwrap();
    let bytes = std::fs::read(place.file()).unwrap();
    let other = model(2);
    let before = bits(&other);
    let near_ends = (0..700).chain(bytes.len() - 50..bytes.len());
    for length in near_ends.chain((700..bytes.len()).step_by(997)) {
        std::fs::write(place.file(), &bytes[..length]).unwrap();
        let error = load(place.file(), &other).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Format { .. }), "{length}: {error}");
        assert!(load_training(place.file(), &other, &mut optimizer).is_err());
    }
    for (at, byte) in [(0, 0xff), (7, 0x80), (8, b'!'), (20, b'"'), (30, 0xff)] {
        let mut damaged = bytes.clone();
        damaged[at] = byte;
        std::fs::write(place.file(), damaged).unwrap();
        let error = load(place.file(), &other).unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::Format { .. } | ErrorKind::Checkpoint { .. }),
            "{at}: {error}"
        );
    }
    std::fs::write(place.file(), [&bytes[..], b"x"].concat()).unwrap();
    assert!(matches!(
        load(place.file(), &other).as_ref().map_err(Error::kind),
        Err(ErrorKind::Format { .. })
    ));
    assert_eq!(bits(&other), before);
    std::fs::write(place.file(), &bytes).unwrap();
    load(place.file(), &other).unwrap();
    assert_ne!(bits(&other), before);
}

#[test]
fn a_parameter_that_does_not_fit_is_named_and_nothing_changes() {
    let place = Temporary::new("misfit");
    let dev = Device::cpu();
    let layer = |i, o| Linear::new(i, o, &dev).unwrap();
    let target = Sequential::new().push(layer(4, 3)).push(layer(3, 2));
    let before = bits(&target);
    let wide = crate::LinearOptions { dtype: DType::F64, ..crate::LinearOptions::default() };
    let bare = crate::LinearOptions { bias: false, ..crate::LinearOptions::default() };
    let second = |options| Linear::with_options(3, 2, options, &dev).unwrap();
    let cases: [(Sequential, &str); 5] = [
        (Sequential::new().push(layer(4, 3)), "parameter 1.weight: missing in the file"),
        (
            Sequential::new().push(layer(4, 3)).push(layer(3, 5)),
            "1.weight: shape [5, 3] in the file, [2, 3] in",
        ),
        (
            Sequential::new().push(layer(4, 3)).push(second(wide)),
            "1.weight: F64 in the file, f32 in the model",
        ),
        (Sequential::new().push(layer(4, 3)).push(second(bare)), "parameter 1.bias: missing in the file"),
        (
            Sequential::new().push(layer(4, 3)).push(layer(3, 2)).push(layer(1, 1)),
            "parameter 2.bias: in the file, but not in the model",
        ),
    ];
    for (saved, expected) in cases {
        save(place.file(), &saved).unwrap();
        let error = load(place.file(), &target).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Checkpoint { .. }), "{error}");
        assert!(error.to_string().contains(expected), "{error}");
        assert_eq!(bits(&target), before);
    }
}

#[test]
fn paths_that_cannot_be_used_are_named() {
    let place = Temporary::new("paths");
    let missing = place.0.join("none/model.safetensors");
    for error in [load(&missing, &model(1)), save(&missing, &model(1)), load(&place.0, &model(1))] {
        let error = error.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Io { .. }), "{error}");
        assert!(error.to_string().contains("streamgrad-paths"), "{error}");
    }
    // A directory cannot be replaced by a file: the write fails late, and cleans up.
    assert!(matches!(save(&place.0, &model(1)).as_ref().map_err(Error::kind), Err(ErrorKind::Io { .. })));
    let stem = place.0.file_name().unwrap().to_str().unwrap().to_owned();
    let left = std::fs::read_dir(place.0.parent().unwrap()).unwrap().flatten();
    let left: Vec<_> = left.map(|e| e.file_name().into_string().unwrap_or_default()).collect();
    assert!(!left.iter().any(|name| name.starts_with(&format!("{stem}."))), "{left:?}");
}

#[test]
fn two_parameters_of_one_name_cannot_be_saved() {
    struct Twice(Linear, Linear);
    impl Module for Twice {
        fn parts<'a>(&'a self, parts: &mut crate::Parts<'a>) {
            parts.child("layer", &self.0);
            parts.child("layer", &self.1);
        }
    }
    let dev = Device::cpu();
    let twice = Twice(Linear::new(2, 2, &dev).unwrap(), Linear::new(2, 2, &dev).unwrap());
    let error = save(Temporary::new("twice").file(), &twice).unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::Checkpoint { name, .. } if &**name == "layer.weight"),
        "{error}"
    );
}

/// Takes steps of two batches from a position on; the model has dropout, so random keys matter too. Where it ends.
fn train(model: &dyn Forward, optimizer: &mut dyn Optimizer, from: Position, steps: usize) -> Position {
    let options = LoaderOptions { batch: 32, seed: 7, ..LoaderOptions::default() };
    let mut batches = DataLoader::new(Digits::load().unwrap(), options).unwrap().steps(2, from).unwrap();
    for step in batches.by_ref().take(steps) {
        for batch in step.unwrap() {
            let loss = batch
                .seeded(|| cross_entropy(&model.forward(&batch.input()).unwrap(), &batch.labels))
                .unwrap();
            optimizer.step(&loss.backward().unwrap()).unwrap();
        }
    }
    batches.position()
}

fn with_dropout(seed: u64) -> Sequential {
    model(seed).push(crate::Dropout::new(0.2).unwrap())
}

#[test]
fn a_resumed_run_is_bit_equal_to_one_that_never_stopped() {
    let place = Temporary::new("resume");
    let adamw = |m: &Sequential| AdamW::new(m.parameters(), 1e-2);
    let sgd = |m: &Sequential| {
        Sgd::new(
            m.parameters(),
            SgdOptions { lr: 0.1, momentum: 0.9, nesterov: true, ..SgdOptions::default() },
        )
    };
    type Make<'a> = &'a dyn Fn(&Sequential) -> Box<dyn Optimizer>;
    let makers: [Make<'_>; 2] = [&|m| Box::new(adamw(m).unwrap()), &|m| Box::new(sgd(m).unwrap())];
    for make in makers {
        let whole = with_dropout(1);
        let mut optimizer = make(&whole);
        train(&whole, &mut *optimizer, Position::default(), 40);

        let half = with_dropout(1);
        let mut optimizer = make(&half);
        let position = train(&half, &mut *optimizer, Position::default(), 20);
        assert_eq!((position.epoch, position.batch), (0, 40), "in the middle of an epoch");
        let scaler = Some(GradScalerState { scale: 0.1, growth_tracker: 7 });
        let progress = Progress { epoch: 0, step: 20, seed: u64::MAX, scaler, loader: Some(position) };
        save_training(place.file(), &half, &*optimizer, progress).unwrap();

        let resumed = with_dropout(99);
        let mut optimizer = make(&resumed);
        optimizer.set_learning_rate(0.5).unwrap();
        assert_eq!(load_training(place.file(), &resumed, &mut *optimizer).unwrap(), progress);
        train(&resumed, &mut *optimizer, position, 20);
        assert_eq!(bits(&whole), bits(&resumed));
        assert_ne!(bits(&whole), bits(&half));
        load(place.file(), &resumed).unwrap();
        assert_eq!(bits(&half), bits(&resumed), "a training checkpoint serves as a model's too");
    }
}

#[test]
fn a_training_state_of_another_kind_changes_nothing() {
    let place = Temporary::new("kind");
    let saved = model(1);
    let mut sgd = Sgd::new(saved.parameters(), SgdOptions::default()).unwrap();
    let other = model(2);
    let before = bits(&other);
    let mut adamw = AdamW::new(other.parameters(), 1e-3).unwrap();
    save(place.file(), &saved).unwrap();
    let error = load_training(place.file(), &other, &mut adamw).unwrap_err();
    assert!(error.to_string().contains("no training state"), "{error}");
    train(&saved, &mut sgd, Position::default(), 1);
    save_training(place.file(), &saved, &sgd, Progress::default()).unwrap();
    let error = load_training(place.file(), &other, &mut adamw).unwrap_err();
    assert!(error.to_string().contains("\"sgd\" in the state, \"adamw\" expected"), "{error}");
    assert_eq!(bits(&other), before);
}

#[test]
fn each_number_of_a_training_run_is_there_once() {
    let place = Temporary::new("numbers");
    let model = model(1);
    let mut sgd = Sgd::new(model.parameters(), SgdOptions::default()).unwrap();
    save_training(place.file(), &model, &sgd, Progress::default()).unwrap();
    let text = read(place.file()).unwrap().metadata()[METADATA].clone();
    let mut load = |text: String| {
        let metadata = Some((METADATA.to_owned(), text));
        format::write(&place.file(), &state_of(&model).unwrap(), metadata).unwrap();
        load_training(place.file(), &model, &mut sgd)
    };
    assert_eq!(load(text.clone()).unwrap(), Progress::default());
    for entry in text.split_whitespace() {
        let name = entry.split('=').next().unwrap();
        // One in place of another, too: as many as there should be.
        for instead in text.split_whitespace().filter(|other| *other != entry) {
            let error = load(text.replace(entry, instead)).unwrap_err().to_string();
            assert!(error.contains("is there more than once"), "{entry} -> {instead}: {error}");
        }
        let error = load(format!("{text} {entry}")).unwrap_err().to_string();
        assert!(error.contains(&format!("metadata: {name} is there more than once")), "{error}");
        if !name.starts_with(OPTIMIZER) {
            let error = load(text.replacen(entry, "", 1)).unwrap_err().to_string();
            assert!(error.contains(&format!("metadata: {name} is missing")), "{error}");
        }
    }
}

#[test]
fn values_that_are_not_finite_are_neither_saved_nor_loaded() {
    let place = Temporary::new("finite");
    let (good, other) = (model(1), model(2));
    let options = SgdOptions { momentum: 0.9, ..SgdOptions::default() };
    let mut sgd = Sgd::new(good.parameters(), options).unwrap();
    train(&good, &mut sgd, Position::default(), 1);
    save_training(place.file(), &good, &sgd, Progress::default()).unwrap();
    let saved = Raw::read(&place.file());
    let before = bits(&other);
    let mut fresh = Sgd::new(other.parameters(), options).unwrap();
    let names: Vec<String> = saved.tensors.keys().cloned().collect();
    assert!(names.iter().any(|name| name == "optimizer/0.momentum_buffer"), "{names:?}");
    for (name, value) in names.iter().zip([f32::NAN, f32::INFINITY, f32::NEG_INFINITY].iter().cycle()) {
        let mut damaged = Raw { tensors: saved.tensors.clone(), text: saved.text.clone() };
        damaged.tensors.get_mut(name).unwrap().2[12..16].copy_from_slice(&value.to_le_bytes());
        damaged.write(&place.file());
        let error = load_training(place.file(), &other, &mut fresh).unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::Checkpoint { name: found, .. } if **found == **name),
            "{error}"
        );
        assert!(error.to_string().contains(&format!("element 3 is {value}")), "{error}");
        if !name.starts_with(OPTIMIZER) {
            assert_eq!(load(place.file(), &other).unwrap_err().to_string(), error.to_string());
        }
    }
    assert_eq!(bits(&other), before);
    good.parameters()[1].value().fill_(f32::NAN).unwrap();
    std::fs::remove_file(place.file()).unwrap();
    for error in [save(place.file(), &good), save_training(place.file(), &good, &sgd, Progress::default())] {
        let error = error.unwrap_err();
        assert!(error.to_string().contains("0.bias: element 0 is NaN"), "{error}");
    }
    assert!(!place.file().exists());
}

#[test]
fn flags_and_truth_values_are_0_or_1() {
    let place = Temporary::new("flags");
    let (good, other) = (model(1), model(2));
    let options = SgdOptions { momentum: 0.9, nesterov: true, ..SgdOptions::default() };
    let sgd = Sgd::new(good.parameters(), options).unwrap();
    save_training(place.file(), &good, &sgd, Progress::default()).unwrap();
    let mut fresh = Sgd::new(other.parameters(), options).unwrap();
    let mut raw = Raw::read(&place.file());
    let text = raw.text.clone();
    for value in ["NaN", "nan", "0.5", "-1", "2"] {
        raw.text = text.replace("nesterov=1", &format!("nesterov={value}"));
        raw.write(&place.file());
        let error = load_training(place.file(), &other, &mut fresh).unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::Checkpoint { name, .. } if &**name == "nesterov"),
            "{error}"
        );
    }
    raw.tensors.insert("seen".into(), (Dtype::BOOL, vec![3], vec![0, 1, 2]));
    raw.write(&place.file());
    let error = read(place.file()).unwrap().tensor("seen", &Device::cpu()).unwrap_err();
    assert!(error.to_string().contains("seen: element 2 is 2"), "{error}");
}

#[test]
fn a_half_that_is_not_finite_is_named() {
    for dtype in [DType::BF16, DType::F16] {
        let values = Tensor::from_slice(&[1.0f32, f32::NEG_INFINITY], &[2], &Device::cpu()).unwrap();
        let place = Temporary::new("half");
        let leaf = Var::leaf(values.to_dtype(dtype).unwrap());
        let error = save(place.file(), &vec![leaf]).unwrap_err();
        assert!(error.to_string().contains("0: element 1 is -inf"), "{error}");
    }
}

#[test]
fn a_buffer_may_be_infinite_but_not_nan() {
    let place = Temporary::new("mask");
    let mask = |last: f32| Tensor::from_slice(&[0.0, last], &[2], &Device::cpu()).unwrap();
    let (saved, loaded) = (mask(f32::NEG_INFINITY), mask(1.0));
    save(place.file(), &[saved]).unwrap();
    load(place.file(), &(loaded.clone(), leaf(0.0))).unwrap_err();
    load(place.file(), &vec![loaded.clone()]).unwrap();
    assert_eq!(loaded.to_vec::<f32>().unwrap(), [0.0, f32::NEG_INFINITY]);
    assert!(save(place.file(), &[mask(f32::NAN)]).unwrap_err().to_string().contains("0: element 1 is NaN"));
}

#[test]
fn what_modules_share_is_saved_once_and_found_under_each_name() {
    let place = Temporary::new("tied");
    let tied = |value: f32| {
        let weight = Var::leaf(Tensor::full(&[2], value, DType::F32, &Device::cpu()).unwrap());
        (weight.clone(), leaf(value), weight)
    };
    save(place.file(), &tied(1.0)).unwrap();
    assert_eq!(read(place.file()).unwrap().names().collect::<Vec<_>>(), ["0", "1"]);
    let other = tied(2.0);
    load(place.file(), &other).unwrap();
    assert_eq!(other.0.to_vec::<f32>().unwrap(), [1.0; 2]);
    // The file has the second name of the shared weight.
    let mut raw = Raw::read(&place.file());
    let weight = raw.tensors.remove("0").unwrap();
    raw.tensors.insert("2".into(), weight.clone());
    raw.write(&place.file());
    let other = tied(3.0);
    load(place.file(), &other).unwrap();
    assert_eq!(other.0.to_vec::<f32>().unwrap(), [1.0; 2]);
    // It may have both.
    raw.tensors.insert("0".into(), weight);
    raw.write(&place.file());
    load(place.file(), &tied(4.0)).unwrap();
}

fn leaf(value: f32) -> Var {
    Var::leaf(Tensor::scalar(value, &Device::cpu()).unwrap())
}

#[test]
fn a_part_of_a_file_goes_to_a_part_of_a_model_under_other_names() {
    let place = Temporary::new("rename");
    let numbers = |values: [f32; 3]| values.map(leaf);
    save(place.file(), &(numbers([1.0, 2.0, 3.0]), leaf(9.0))).unwrap();
    let model = numbers([0.0; 3]);
    let values = || model.iter().map(|v| v.item::<f32>().unwrap()).collect::<Vec<_>>();
    let message = load(place.file(), &model).unwrap_err().to_string();
    // All that does not fit is named, and what would help.
    for part in
        ["parameter 0: missing in the file;", "2: missing", "0.2: in the file, but", "begin with \"0.\""]
    {
        assert!(message.contains(part), "{message}");
    }
    let options = LoadOptions { prefix: "0.", allow_unknown: true, ..LoadOptions::default() };
    load_with(place.file(), &model, LoadOptions { allow_unknown: false, ..options }).unwrap_err();
    let odd = |name: &str| name != "1";
    let report = load_with(place.file(), &model, LoadOptions { filter: Some(&odd), ..options }).unwrap();
    assert_eq!((report.loaded, report.unknown), (vec!["0".to_owned(), "2".into()], vec!["1".to_owned()]));
    assert_eq!(values(), [1.0, 0.0, 3.0]);
    let next = |name: &str| format!("0.{}", name.parse::<usize>().unwrap() + 1);
    let options = LoadOptions { rename: Some(&next), allow_unknown: true, ..LoadOptions::default() };
    load_with(place.file(), &model, options).unwrap_err();
    let report = load_with(place.file(), &model, LoadOptions { allow_missing: true, ..options }).unwrap();
    assert_eq!(report.missing, ["2"]);
    assert_eq!(values(), [2.0, 3.0, 3.0]);
    let halves = [leaf(0.0).to_dtype(DType::BF16).unwrap().value().clone()].map(Var::leaf);
    let options = LoadOptions { prefix: "0.", allow_unknown: true, ..LoadOptions::default() };
    assert!(load_with(place.file(), &halves, options).is_err());
    load_with(place.file(), &halves, LoadOptions { convert: true, ..options }).unwrap();
    assert_eq!(halves[0].value().to_dtype(DType::F32).unwrap().item::<f32>().unwrap(), 1.0);
    // What is not finite in the model's type is refused, and so are types of another kind.
    save(place.file(), &[Var::leaf(Tensor::scalar(1e39_f64, &Device::cpu()).unwrap())]).unwrap();
    let convert = LoadOptions { convert: true, ..LoadOptions::default() };
    let error = load_with(place.file(), &[leaf(0.0)], convert).unwrap_err();
    assert!(error.to_string().contains("0: an element is not finite in f32"), "{error}");
    assert!(load_with(place.file(), &[Tensor::scalar(1_i64, &Device::cpu()).unwrap()], convert).is_err());
}

#[test]
fn files_of_torch_save_are_recognized() {
    let place = Temporary::new("torch");
    for start in [&b"PK\x03\x04abcdefgh"[..], &[0x80, 2, 0x8a, 10, 1, 2, 3, 4, 5]] {
        std::fs::write(place.file(), start).unwrap();
        let error = load(place.file(), &model(1)).unwrap_err();
        assert!(error.to_string().contains("torch.save"), "{error}");
    }
}

#[test]
fn a_resumed_run_draws_the_same_numbers() {
    let place = Temporary::new("generator");
    let mut sgd = Sgd::new(model(1).parameters(), 0.1).unwrap();
    let draw = || tensor::next_key();
    tensor::with_generator(Generator::new(11), || {
        draw();
        tensor::next_child();
        save_training(place.file(), &model(1), &sgd, Progress::default()).unwrap();
        let (want, child) = ([draw(), draw()], tensor::next_child());
        load_training(place.file(), &model(1), &mut sgd).unwrap();
        assert_eq!([draw(), draw()], want);
        assert_eq!(tensor::next_child(), child);
    });
}

#[test]
fn extra_values_come_back_in_their_types() {
    let place = Temporary::new("extra");
    let model = model(1);
    let mut sgd = Sgd::new(model.parameters(), 0.1).unwrap();
    let floats = [0.1 + 0.2, 1.0, -0.0, 1e16, 1e-300, f64::INFINITY, f64::NEG_INFINITY, f64::NAN];
    let named = |at: usize| format!("float{at}");
    let extra =
        floats.iter().enumerate().fold(Extra::default(), |extra, (at, &value)| extra.with(named(at), value));
    let weights = Tensor::from_slice(&[f32::NAN, 1.5], &[2, 1], &Device::cpu()).unwrap();
    let extra =
        extra.with("bad", 0_u64).with("most", u64::MAX).with("ema.weight", weights).with("bad", 2_u64);
    save_training_with(place.file(), &model, &sgd, Progress::default(), &extra).unwrap();
    let (_, loaded) = load_training_with(place.file(), &model, &mut sgd).unwrap();
    for (at, value) in floats.iter().enumerate() {
        assert_eq!(loaded.float(&named(at)).unwrap().to_bits(), value.to_bits(), "{value}");
    }
    assert_eq!((loaded.integer("bad").unwrap(), loaded.integer("most").unwrap()), (2, u64::MAX));
    let weights = loaded.tensor("ema.weight").unwrap();
    assert_eq!((weights.shape(), weights.to_vec::<f32>().unwrap()[1]), (&[2, 1][..], 1.5));
    let message = |error: Result<()>| error.unwrap_err().to_string();
    for (error, expected) in [
        (loaded.float("best").map(drop), "best: no such value"),
        (loaded.float("bad").map(drop), "bad: an integer in the file, a float expected"),
        (loaded.integer("float1").map(drop), "float1: a float in the file, an integer expected"),
        (loaded.tensor("float0").map(drop), "float0: a float in the file, a tensor expected"),
        (loaded.float("ema.weight").map(drop), "ema.weight: a tensor in the file, a float expected"),
    ] {
        assert_eq!(message(error), format!("checkpoint: parameter extra/{expected}"));
    }
    // Other readers pass them over.
    load(place.file(), &model).unwrap();
    load_training(place.file(), &model, &mut sgd).unwrap();
    save_training(place.file(), &model, &sgd, Progress::default()).unwrap();
    assert!(load_training_with(place.file(), &model, &mut sgd).unwrap().1.get("bad").is_err());
    for name in ["", "a b", "a=b", "a\n"] {
        let extra = Extra::default().with(name, 1.0);
        let error = message(save_training_with(place.file(), &model, &sgd, Progress::default(), &extra));
        let expected = "names of numbers have no blanks and no '=', and are not empty";
        assert!(error.ends_with(expected), "{error}");
        // Tensors of other programs have any names, and are kept with them.
        let mut raw = Raw::read(&place.file());
        raw.tensors.insert(format!("extra/{name}"), (Dtype::U8, vec![2], vec![3, 4]));
        raw.write(&place.file());
        let (_, extra) = load_training_with(place.file(), &model, &mut sgd).unwrap();
        save_training_with(place.file(), &model, &sgd, Progress::default(), &extra).unwrap();
        let (_, extra) = load_training_with(place.file(), &model, &mut sgd).unwrap();
        assert_eq!(extra.tensor(name).unwrap().to_vec::<u8>().unwrap(), [3, 4]);
    }
}
