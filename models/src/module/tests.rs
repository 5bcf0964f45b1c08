use device::{DType, Device};

use super::*;
use crate::{Dropout, Linear, Module, copy_parameters, lerp_parameters};

fn number(value: f64) -> Tensor {
    Tensor::scalar(value, &Device::cpu()).unwrap()
}

fn leaf(value: f64) -> Var {
    Var::leaf(number(value))
}

fn linear() -> Linear {
    Linear::new(1, 1, &Device::cpu()).unwrap()
}

fn names<T>(named: Vec<(String, T)>) -> Vec<String> {
    named.into_iter().map(|(name, _)| name).collect()
}

#[test]
fn parameters_are_copied_and_moved_by_name() -> Result<()> {
    let (to, from) = ((leaf(1.0), [number(5.0)]), (leaf(3.0), [number(7.0)]));
    let values = |m: &(Var, [Tensor; 1])| Ok([m.0.item::<f64>()?, m.1[0].item::<f64>()?]);
    lerp_parameters(&to, &from, 0.25)?;
    assert_eq!(values(&to)?, [1.5, 7.0]);
    copy_parameters(&to, &from)?;
    assert_eq!(values(&to)?, values(&from)?);
    assert!(copy_parameters(&to, &from.0).is_err() && copy_parameters(&from.0, &to).is_err());
    assert!(lerp_parameters(&to, &from, 1.5).is_err());
    // Nothing is broadcast or converted.
    let row = Var::leaf(Tensor::zeros(&[2], DType::F64, &Device::cpu())?);
    assert!(copy_parameters(&row, &leaf(1.0)).is_err() && lerp_parameters(&row, &leaf(1.0), 0.5).is_err());
    let far = leaf(1e17);
    lerp_parameters(&far, &leaf(1.0), 1.0)?;
    assert_eq!(far.item::<f64>()?, 1.0);
    // A half moves by a sum in F32, rounded once.
    let half = |value: f64| Ok(Var::leaf(number(value).to_dtype(DType::BF16)?));
    let (to, from) = (half(1.0)?, half(3.0)?);
    lerp_parameters(&to, &from, 0.001)?;
    assert_eq!(to.value().to_dtype(DType::F64)?.item::<f64>()?, 1.0);
    lerp_parameters(&to, &from, 0.01)?;
    assert_eq!(to.value().to_dtype(DType::F64)?.item::<f64>()?, 1.023_437_5);
    Ok(())
}

#[test]
fn tuples_and_choices_of_parameters() {
    let pair = (linear(), leaf(1.0), [linear()]);
    assert_eq!(names(pair.named_parameters()), ["0.weight", "0.bias", "1", "2.0.weight", "2.0.bias"]);
    assert_eq!(pair.parameters_where(&|name, _| name.ends_with("bias")).len(), 2);
    assert_eq!(pair.parameters_where(&|_, parameter| parameter.rank() == 2).len(), 2);
}

/// Every kind of field.
#[derive(Module)]
struct All<M> {
    scale: Var,
    missing: Option<Var>,
    there: Option<Linear>,
    list: Vec<Pair>,
    array: [Linear; 2],
    boxed: Box<dyn Forward>,
    shared: Arc<Linear>,
    generic: M,
    #[module(flatten)]
    inside: Running,
    #[module(skip)]
    constant: Tensor,
    r#type: Var,
    training: Training,
}

#[derive(Module)]
struct Pair(Var, #[module(skip)] u8, #[module(flatten)] Option<Dropout>, Var);

#[derive(Module)]
struct Running {
    mean: Tensor,
}

#[test]
fn every_field_takes_part_under_its_name() {
    let all = All {
        scale: leaf(1.0),
        missing: None,
        there: Some(linear()),
        list: vec![Pair(leaf(2.0), 1, None, leaf(3.0)), Pair(leaf(4.0), 1, None, leaf(5.0))],
        array: [linear(), linear()],
        boxed: Box::new(linear()),
        shared: Arc::new(linear()),
        generic: linear(),
        inside: Running { mean: number(0.0) },
        constant: number(0.0),
        r#type: leaf(6.0),
        training: Training::default(),
    };
    let of = |module: &str| [format!("{module}.weight"), format!("{module}.bias")];
    let mut expected = vec!["scale".to_owned()];
    expected.extend(of("there"));
    expected.extend(["list.0.0", "list.0.3", "list.1.0", "list.1.3"].map(String::from));
    expected
        .extend(["array.0", "array.1", "boxed", "shared", "generic"].iter().flat_map(|module| of(module)));
    expected.push("type".to_owned());
    assert_eq!(names(all.named_parameters()), expected);
    assert_eq!(names(all.named_buffers()), ["mean"]);
    assert_eq!(all.constant.dtype(), DType::F64);
    assert_eq!(all.list[0].1, 1);
}

#[test]
fn the_mode_reaches_every_part() {
    #[derive(Module)]
    struct Modes {
        own: Training,
        #[module(flatten)]
        optional: Option<Training>,
        list: Vec<Arc<Training>>,
        inner: [Box<Training>; 1],
    }
    let new = Training::default;
    let modes =
        Modes { own: new(), optional: Some(new()), list: vec![Arc::new(new())], inner: [Box::new(new())] };
    let all = || {
        [&modes.own, modes.optional.as_ref().unwrap(), &modes.list[0], &modes.inner[0]].map(Training::is_on)
    };
    assert_eq!(all(), [true; 4]);
    modes.set_training(false);
    assert_eq!(all(), [false; 4]);
    modes.set_training(true);
    assert_eq!(all(), [true; 4]);
}

/// A frozen parameter keeps its value and has no gradient, nor does what an optimizer remembers of it change.
#[test]
fn optimizers_leave_frozen_parameters_alone() {
    use crate::{Adam, Optimizer, Sequential};
    let dev = Device::cpu();
    let (body, head) = (Linear::new(3, 4, &dev).unwrap(), Linear::new(4, 2, &dev).unwrap());
    let model = Sequential::new().push(body).push(head);
    let x = Var::constant(Tensor::ones(&[5, 3], DType::F32, &dev).unwrap());
    let mut adam = Adam::new(model.parameters(), 0.1).unwrap();
    let backward = || model.forward(&x).unwrap().sum_all().unwrap().backward().unwrap();
    let values = || model.parameters().iter().map(|p| p.value().to_vec::<f32>().unwrap()).collect::<Vec<_>>();
    let before_freeze = backward();
    adam.step(&before_freeze).unwrap();
    let old = values();
    let weight = &model.parameters()[0];
    weight.freeze();
    // Gradients of before are there, and ignored.
    adam.step(&before_freeze).unwrap();
    let gradients = backward();
    assert!(gradients.get(weight).is_none() && gradients.len() == 3);
    adam.step(&gradients).unwrap();
    let new = values();
    assert_eq!(new[0], old[0]);
    assert!((1..4).all(|other| new[other] != old[other]));
    model.freeze();
    assert!(adam.step(&before_freeze).is_err());
    assert_eq!(values(), new);
    assert_eq!(model.named_parameters().len(), 4);
    model.unfreeze();
    adam.step(&backward()).unwrap();
    assert!((0..4).all(|any| values()[any] != new[any]));
    assert!(Adam::new(model.parameters(), 0.1).is_ok());
}

#[test]
fn conversions_keep_what_is_shared_and_frozen() -> Result<()> {
    use crate::{BatchNorm1d, Gru, Sequential};
    let dev = Device::cpu();
    let tied = leaf(1.5);
    tied.freeze();
    let mut model = (
        Sequential::new().push(Linear::new(2, 3, &dev)?).push(BatchNorm1d::new(3, &dev)?),
        [Some(tied.clone()), None, Some(tied.clone())],
        vec![Box::new(Gru::new(2, 2, &dev)?)],
        (Arc::new(linear()), Var::constant(number(2.5)), Training::default()),
        number(3.5),
    );
    let old = model.named_parameters();
    model.to_dtype(DType::BF16)?;
    let new = model.named_parameters();
    assert_eq!(names(new.clone()), names(old.clone()));
    assert!(
        new.iter().all(|(_, var)| var.dtype() == DType::BF16)
            && old.iter().all(|(_, var)| var.dtype() != DType::BF16)
    );
    let [Some(first), None, Some(second)] = &model.1 else { panic!() };
    assert!(
        first.id() == second.id() && first.is_leaf() && !first.requires_grad() && tied.dtype() == DType::F64
    );
    assert!(model.3.1.id().is_none() && new[0].1.requires_grad());
    let buffers: Vec<DType> = model.named_buffers().iter().map(|(_, buffer)| buffer.dtype()).collect();
    assert_eq!(buffers, [DType::F32, DType::F32, DType::I64, DType::F32]);
    let x = Var::constant(Tensor::ones(&[4, 2], DType::BF16, &dev)?);
    assert_eq!(model.0.forward(&x)?.dtype(), DType::BF16);
    // What is converted to what it is stays the same.
    let ids = |model: &dyn Module| model.parameters().iter().map(Var::id).collect::<Vec<_>>();
    let before = ids(&model);
    model.to_dtype(DType::BF16)?;
    model.to_device(&dev)?;
    assert_eq!(ids(&model), before);
    let other = Device::cpu_with(device::CpuConfig::default());
    model.to_device(&other)?;
    assert!(model.parameters().iter().all(|var| *var.device() == other));
    assert!(model.named_buffers().iter().all(|(_, buffer)| *buffer.device() == other));
    Ok(())
}

#[test]
fn what_cannot_be_converted_is_named_and_stays() {
    struct ByHand(Var);
    impl Module for ByHand {
        fn parts<'a>(&'a self, parts: &mut Parts<'a>) {
            parts.parameter("own", &self.0);
        }
    }
    let shared = Arc::new(linear());
    let cases: [(Box<dyn Module>, DType, &str); 3] = [
        (
            Box::new((leaf(1.0), ByHand(leaf(1.0)))),
            DType::F32,
            "module must be made of modules that have `parts_mut` and are in no shared `Arc`, got models::module::tests::what_cannot_be_converted_is_named_and_stays::ByHand",
        ),
        (
            Box::new((leaf(1.0), Arc::clone(&shared))),
            DType::F64,
            "module must be made of modules that have `parts_mut` and are in no shared `Arc`, got alloc::sync::Arc<models::layers::linear::Linear>",
        ),
        (Box::new(leaf(1.0)), DType::I64, "not defined for i64, only for floats"),
    ];
    for (mut model, dtype, expected) in cases {
        let before: Vec<_> = model.parameters().iter().map(|var| (var.id(), var.dtype())).collect();
        assert_eq!(model.to_dtype(dtype).unwrap_err().to_string(), format!("Module::to_dtype: {expected}"));
        assert_eq!(model.parameters().iter().map(|var| (var.id(), var.dtype())).collect::<Vec<_>>(), before);
    }
}
