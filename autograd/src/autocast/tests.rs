use std::panic::{AssertUnwindSafe, catch_unwind};

use tensor::{ConvOptions, Device, Error, ErrorKind, Graph, bf16, f16};

use super::*;
use crate::ops::fused::{self, Activation};
use crate::ops::{self, AttentionOptions, BceWithLogits, CrossEntropy};
use crate::{BackwardOptions, ConcurrentBatches, Lanes, Reduction, no_grad};

use DType::{BF16, F16, F32, F64, I64};

fn ones(shape: &[usize], dtype: DType) -> Var {
    Var::constant(Tensor::ones(shape, dtype, &Device::cpu()).unwrap())
}

fn weight(values: &[f32], shape: &[usize]) -> Var {
    Var::leaf(Tensor::from_slice(values, shape, &Device::cpu()).unwrap())
}

/// How many conversions led to `y`.
fn conversions(y: &Var) -> usize {
    y.tape().iter().filter(|entry| entry.op == "to_dtype").count()
}

type Op = (&'static str, fn(&[Var; 3]) -> Result<Var>);

/// Torch's list of ops that run in 16 bits.
const PRODUCTS: [Op; 12] = [
    ("rnn", |x| sequence::<ops::Elman>(x)),
    ("gru", |x| sequence::<ops::GruCell>(x)),
    ("lstm", |x| sequence::<ops::LstmCell>(x)),
    ("conv2d", |x| images(&x[0])?.conv2d(&images(&x[1])?, Some(&one_of(&x[2])?), &ConvOptions::default())),
    ("conv2d_relu", |x| {
        fused::conv2d(
            &images(&x[0])?,
            &images(&x[1])?,
            Some(&one_of(&x[2])?),
            &ConvOptions::default(),
            Activation::Relu,
        )
    }),
    ("conv_transpose2d", |x| {
        images(&x[0])?.conv_transpose2d(&images(&x[1])?, None, [0; 2], &ConvOptions::default())
    }),
    ("conv_transpose2d_relu", |x| {
        fused::conv_transpose2d(
            &images(&x[0])?,
            &images(&x[1])?,
            None,
            [0; 2],
            &ConvOptions::default(),
            Activation::Relu,
        )
    }),
    ("linear", |x| x[0].linear(&x[1], Some(&one_of(&x[2])?.expand(&[6])?))),
    ("linear_relu", |x| fused::linear(&x[0], &x[1], Some(&one_of(&x[2])?.expand(&[6])?), Activation::Relu)),
    ("matmul", |x| x[0].matmul(&x[1].t()?)),
    ("attention", |x| {
        let mask = Some(x[0].matmul(&x[1].t()?)?.value().to_dtype(F32)?);
        let options = AttentionOptions { attn_mask: mask, dropout_p: 0.1, ..AttentionOptions::default() };
        x[0].scaled_dot_product_attention(&x[1], &x[2], &options)
    }),
    ("self_attention", |x| x[0].self_attention(2, &AttentionOptions::default())),
];

/// Torch's list of ops that run in F32, and what is made of them.
const WIDE: [Op; 41] = [
    ("bce_with_logits", |x| x[0].bce_with_logits(&x[1], Reduction::None)),
    ("cross_entropy", |x| x[0].cross_entropy(&labels()?, Reduction::Mean)),
    ("cross_entropy_with", |x| {
        let weight = Some(one_of(&x[1])?.expand(&[6])?.value().to_dtype(F32)?);
        CrossEntropy { weight, ..CrossEntropy::default() }.loss(&x[0], &labels()?)
    }),
    ("bce_with_logits_with", |x| BceWithLogits::default().loss(&x[0], &x[1])),
    ("cosine_similarity", |x| x[0].cosine_similarity(&x[1], 1, 1e-8)),
    ("cumprod", |x| x[0].cumprod(0)),
    ("cumsum", |x| x[0].cumsum(0)),
    ("exp", |x| x[0].exp()),
    ("expm1", |x| x[0].expm1()),
    ("log1p", |x| x[0].log1p()),
    ("log2", |x| x[0].log2()),
    ("tan", |x| x[0].tan()),
    ("group_norm", |x| x[0].group_norm(2, Some(&row(&x[1])?), Some(&row(&x[2])?), 1e-5)),
    ("kl_div", |x| x[0].kl_div(&x[1], true, Reduction::Mean)),
    ("l1_loss", |x| x[0].l1_loss(&x[1], Reduction::Mean)),
    ("linear_cross_entropy", |x| x[0].linear_cross_entropy(&x[1], None, &labels()?, Reduction::Mean, 4)),
    ("layer_norm", |x| x[0].layer_norm(&[6], Some(&row(&x[1])?), Some(&row(&x[2])?), 1e-5)),
    ("log", |x| x[0].log()),
    ("log_softmax", |x| x[0].log_softmax(1)),
    ("logsumexp", |x| x[0].logsumexp(&[1], false)),
    ("mse_loss", |x| x[0].mse_loss(&x[1], Reduction::None)),
    ("nll_loss", |x| x[0].nll_loss(&labels()?, Reduction::Mean)),
    ("norm", |x| x[0].norm(2.0, &[1], false)),
    ("normalize", |x| x[0].normalize(2.0, 1, 1e-12)),
    ("pow", |x| x[0].pow(&x[1])),
    ("pow_scalar", |x| x[0].pow_scalar(3.0)),
    ("prod", |x| x[0].prod(&[1], false)),
    ("reciprocal", |x| x[0].reciprocal()),
    ("rms_norm", |x| x[0].rms_norm(&[6], Some(&row(&x[1])?), None)),
    ("rsqrt", |x| x[0].rsqrt()),
    ("smooth_l1_loss", |x| x[0].smooth_l1_loss(&x[1], 1.0, Reduction::None)),
    ("softmax", |x| x[0].softmax(0)),
    ("softplus", |x| x[0].softplus(1.0, 20.0)),
    ("square", |x| x[0].square()),
    ("sum", |x| x[0].sum(&[0], true)),
    ("sum_all", |x| x[0].sum_all()),
    ("upsample", |x| x[0].upsample_nearest2d([4, 7])),
    ("upsample", |x| x[0].upsample_bilinear2d([4, 7], false)),
    ("sum of products", |x| x[0].linear(&x[1], None)?.sum(&[], false)),
    ("loss of products", |x| x[0].linear(&x[1], None)?.cross_entropy(&labels()?, Reduction::Mean)),
    ("norm of products", |x| x[0].linear(&x[1], None)?.layer_norm(&[6], None, None, 1e-5)),
];

/// Ops that take what they are given.
const OTHERS: [Op; 15] = [
    ("relu", |x| x[0].relu()),
    ("gelu", |x| x[0].gelu(tensor::GeluKind::Tanh)),
    ("tanh", |x| x[0].tanh()),
    ("mul_scalar", |x| x[0].mul_scalar(2.0)),
    ("mean", |x| x[0].mean(&[0], false)),
    ("max", |x| x[0].max(&[0], false)),
    ("dropout", |x| x[0].dropout(0.5, None)),
    ("transpose", |x| x[0].t()),
    ("batch_norm", |x| Ok(x[0].batch_norm(Some(&ones(&[6], F32)), None, 1e-5)?.0)),
    ("batch_norm_relu", |x| {
        Ok(fused::batch_norm(&x[0], None, [Some(&ones(&[6], F32)), None], 1e-5, Activation::Relu)?.0)
    }),
    ("batch_norm_with", |x| {
        let row = ones(&[6], F32);
        x[0].batch_norm_with(row.value(), row.value(), Some(&row), None, 1e-5)
    }),
    ("embedding", |x| x[0].embedding(&labels()?, None)),
    ("add", |x| x[0].add(&x[1])),
    ("cat", |x| Var::cat(&[&x[0], &x[1]], 0)),
    ("stack", |x| Var::stack(&[&x[0], &x[1]], 0)),
];

/// One step of a recurrent layer.
fn sequence<C: ops::Cell>(x: &[Var]) -> Result<Var> {
    let (input, weight) = (x[0].unsqueeze(0)?, x[1].repeat(&[C::GATES, 1])?);
    let state = vec![x[2].clone(); <C::State as ops::CellState>::PARTS];
    Ok(ops::recurrent::<C>(&input, [&weight, &weight], None, &state, false)?.0)
}

fn images(x: &Var) -> Result<Var> {
    x.reshape(&[6, 6, 1, 1])
}

fn row(x: &Var) -> Result<Var> {
    x.select(0, 0)
}

fn one_of(x: &Var) -> Result<Var> {
    x.narrow(0, 0, 1)?.narrow(1, 0, 1)?.reshape(&[1])?.expand(&[6])
}

fn labels() -> Result<Tensor> {
    Tensor::from_slice(&[0_i64, 1, 2, 3, 4, 5], &[6], &Device::cpu())
}

/// The lists of these tests have each op whose column says that it casts, and no other op of the list of ops.
#[test]
fn each_op_that_casts_is_tested() {
    for op in ops::ALL {
        let [half, wide, other] =
            [&PRODUCTS[..], &WIDE, &OTHERS].map(|tested| tested.iter().any(|(name, _)| *name == op.name));
        let fits = match op.autocast {
            Autocast::Half => half || wide && op.name == "linear_cross_entropy",
            Autocast::F32 => wide && !half && !other,
            Autocast::Operands => !half && !wide,
        };
        assert!(fits, "{op:?}");
    }
}

#[test]
fn each_op_runs_in_the_type_of_its_list() -> Result<()> {
    for half in [BF16, F16] {
        for mixed in [[F32; 3], [half; 3], [half, F32, half], [F32, half, F32]] {
            let x = mixed.map(|dtype| ones(&[6, 6], dtype));
            let found = |(name, op): &Op| {
                let y =
                    autocast(half, || op(&x)).unwrap_or_else(|error| panic!("{name} of {mixed:?}: {error}"));
                (*name, y.dtype())
            };
            for op in &PRODUCTS {
                assert_eq!(found(op), (op.0, half), "{mixed:?}");
            }
            for op in &WIDE {
                assert_eq!(found(op), (op.0, F32), "{mixed:?}");
            }
            for op in &OTHERS[..12] {
                assert_eq!(found(op), (op.0, mixed[0]), "{mixed:?}");
            }
            for op in &OTHERS[12..] {
                assert_eq!(found(op), (op.0, mixed[0].promote(mixed[1])), "{mixed:?}");
            }
        }
    }
    Ok(())
}

#[test]
fn other_types_are_left_alone_and_refused_as_a_target() -> Result<()> {
    let x = ones(&[2, 2], F64);
    assert_eq!(autocast(BF16, || x.matmul(&x))?.dtype(), F64);
    assert_eq!(autocast(BF16, || x.exp())?.dtype(), F64);
    assert_eq!(autocast(BF16, || ones(&[2], I64).sum_all())?.dtype(), I64);
    for dtype in [F64, I64] {
        let refused = autocast(dtype, || -> Result<()> { panic!("it is called") });
        assert!(matches!(
            refused.as_ref().map_err(Error::kind),
            Err(ErrorKind::DTypeUnsupported { op: "autocast", .. })
        ));
    }
    Ok(())
}

#[test]
fn it_nests_and_ends_with_its_closure() -> Result<()> {
    let x = ones(&[2, 2], F32);
    let dtype = || x.matmul(&x).map(|y| y.dtype());
    autocast(BF16, || {
        assert_eq!(dtype()?, BF16);
        assert_eq!(autocast(F16, dtype)?, F16);
        assert_eq!((autocast(None, dtype)?, autocast(F32, dtype)?), (F32, F32));
        assert_eq!(autocast(None, || autocast(BF16, dtype))?, BF16);
        assert_eq!(dtype()?, BF16);
        let panicked =
            catch_unwind(AssertUnwindSafe(|| autocast(F16, || -> Result<()> { panic!("a test") })));
        assert!(panicked.is_err());
        assert_eq!(dtype()?, BF16);
        Ok(())
    })?;
    assert_eq!(dtype()?, F32);
    assert!(
        autocast(BF16, || ones(&[2], F32).matmul(&x.unsqueeze(0)?.select(0, 0)?.narrow(0, 0, 1)?)).is_err()
    );
    assert_eq!(dtype()?, F32);
    Ok(())
}

/// A loss whose gradient is 1 where three uses of `w` share a conversion, as additions to 1 are rounded away in BF16; with one
/// conversion for each it is 1 + 2^-7. With `each` every use is under an autocast of its own.
fn loss_in_parts(w: &Var, each: bool) -> Result<Var> {
    let part = |factor: f64| {
        let factor = Var::constant(Tensor::full(&[1, 1], factor, F32, &Device::cpu())?);
        let product = || factor.matmul(w);
        if each { autocast(BF16, product)?.sum_all() } else { product()?.sum_all() }
    };
    let small = 2.0_f64.powi(-8);
    part(small)?.add(&part(small)?)?.add(&part(1.0)?)
}

#[test]
fn a_step_that_is_captured_within_an_autocast_shares_its_conversions() -> Result<()> {
    let (w, dev) = (weight(&[1.0], &[1, 1]), Device::cpu());
    for each in [false, true] {
        let step = || Ok(loss_in_parts(&w, each)?.backward()?.get(&w));
        let item = |gradient: Option<Tensor>| gradient.map(|gradient| gradient.item::<f32>()).transpose();
        let steps = || -> Result<()> {
            for _ in 0..2 {
                assert_eq!(item(step()?)?, Some(1.0), "eager, {each}");
                assert_eq!(item(Graph::capture(&dev, step)?.replay()?)?, Some(1.0), "captured, {each}");
            }
            // What is converted between replays is not theirs.
            let graph = Graph::capture(&dev, || Ok(ones(&[1, 1], F32).matmul(&w)?.value().clone()))?;
            for value in [3.0, 1.0] {
                w.value().fill_(value)?;
                assert_eq!(graph.replay()?.item::<bf16>()?.to_f64(), value);
            }
            Ok(())
        };
        autocast(BF16, steps)?;
    }
    Ok(())
}

#[test]
fn a_step_that_fails_within_an_autocast_leaves_nothing_behind() -> Result<()> {
    let (w, dev) = (weight(&[1.0], &[1, 1]), Device::cpu());
    autocast(BF16, || {
        let failed = Graph::capture(&dev, || {
            w.matmul(&w)?;
            Err::<Tensor, _>(Error::invalid("test", "step", "one that does not fail", "this"))
        });
        assert!(matches!(
            failed.as_ref().map_err(Error::kind),
            Err(ErrorKind::InvalidArgument { op: "test", .. })
        ));
        assert_eq!(w.matmul(&w)?.value().item::<bf16>()?, bf16::from_f32(1.0));
        let graph = Graph::capture(&dev, || Ok(w.matmul(&w)?.value().clone()))?;
        assert_eq!(graph.replay()?.item::<bf16>()?, bf16::from_f32(1.0));
        Ok(())
    })
}

/// Batches on other threads than the step's keep what they converted as those on its own do.
#[test]
fn each_batch_shares_its_conversions_where_autocast_is_off_around_the_step() -> Result<()> {
    let w = weight(&[1.0], &[1, 1]);
    let gradient = |lanes: usize| -> Result<f32> {
        let lanes = ConcurrentBatches::with_options(&Device::cpu(), lanes, Lanes::Always)?;
        let step = || lanes.step([(), ()], |()| loss_in_parts(&w, true));
        let step = autocast(BF16, || autocast(None, step))?;
        step.gradients.get(&w).map_or(Ok(f32::NAN), |gradient| gradient.item())
    };
    assert_eq!((gradient(1)?, gradient(2)?), (2.0, 2.0));
    Ok(())
}

#[test]
fn a_weight_is_converted_once_and_its_gradients_are_added_in_16_bits() -> Result<()> {
    // 1 + 2^-8 + 2^-8 is 1 + 2^-7 in F32; in BF16 each addition to 1 is rounded away.
    let (w, small) = (weight(&[1.0], &[1, 1]), 2.0_f32.powi(-8));
    let factors = [small, small, 1.0].map(|x| Var::constant(weight(&[x], &[1, 1]).value().clone()));
    let loss = || {
        let parts: Vec<Var> = factors.iter().map(|x| x.matmul(&w)).collect::<Result<_>>()?;
        let parts: Vec<Var> = parts.iter().map(Var::sum_all).collect::<Result<_>>()?;
        parts[0].add(&parts[1])?.add(&parts[2])
    };
    let y = autocast(BF16, loss)?;
    // The weight, and each product for its sum.
    assert_eq!(conversions(&y), 4);
    let gradient = y.backward()?.get(&w).map(|g| g.to_vec::<f32>()).transpose()?;
    assert_eq!(gradient, Some(vec![1.0]));
    assert_eq!(
        loss()?.backward()?.get(&w).map(|g| g.to_vec::<f32>()).transpose()?,
        Some(vec![1.0 + 2.0 * small])
    );
    Ok(())
}

#[test]
fn logits_of_16_bits_are_not_copied_and_give_the_bits_of_the_copy() -> Result<()> {
    let (x, labels) = (weight(&[0.3, -1.7, 2.1, 0.9, -0.2, 1.3], &[2, 3]), [2_i64, 0]);
    let labels = Tensor::from_slice(&labels, &[2], &Device::cpu())?;
    for half in [BF16, F16] {
        for reduction in [Reduction::Mean, Reduction::None] {
            let logits = Var::leaf(x.value().to_dtype(half)?);
            let bits = |loss: Var| -> Result<_> {
                let gradient =
                    loss.sum_all()?.backward()?.get(&logits).map(|g| g.to_dtype(F64)?.to_vec::<f64>());
                Ok((loss.value().to_vec::<f32>()?, gradient.transpose()?))
            };
            let loss = autocast(half, || logits.cross_entropy(&labels, reduction))?;
            assert_eq!(conversions(&loss), 0);
            let copied = logits.to_dtype(F32)?.cross_entropy(&labels, reduction)?;
            assert_eq!(bits(loss)?, bits(copied)?, "{half}, {reduction:?}");
            assert_eq!(logits.cross_entropy(&labels, reduction)?.dtype(), half);
        }
    }
    Ok(())
}

#[test]
fn a_weight_that_was_changed_is_converted_anew() -> Result<()> {
    let (w, x) = (weight(&[1.0, 2.0], &[2, 1]), ones(&[1, 1], F32));
    autocast(BF16, || {
        let y = || x.linear(&w, None)?.value().to_vec::<bf16>();
        let [one, two, three] = [1.0, 2.0, 3.0].map(bf16::from_f32);
        assert_eq!(y()?, [one, two]);
        w.value().narrow(0, 0, 1)?.add_scalar_(2.0)?;
        assert_eq!(y()?, [three, two]);
        assert_eq!(
            autocast(F16, || x.linear(&w, None))?.value().to_vec::<f16>()?,
            [3.0, 2.0].map(f16::from_f32)
        );
        Ok(())
    })
}

#[test]
fn what_was_kept_without_a_tape_has_a_place_on_it_later() -> Result<()> {
    let (w, x) = (weight(&[2.0], &[1, 1]), ones(&[1, 1], F32));
    let loss = || x.linear(&w, None)?.sum_all();
    autocast(BF16, || {
        assert!(!no_grad(loss)?.requires_grad());
        assert_eq!(loss()?.backward()?.len(), 1);
        Ok(())
    })
}

#[test]
fn graphs_that_share_a_conversion_are_consumed_apart() -> Result<()> {
    let (w, x) = (weight(&[2.0], &[1, 1]), ones(&[1, 1], F32));
    autocast(BF16, || {
        let loss = || x.linear(&w, None)?.sum_all();
        let losses = [loss()?, loss()?];
        for loss in &losses {
            assert_eq!(loss.backward()?.get(&w).map(|g| g.item::<f32>()).transpose()?, Some(1.0));
        }
        assert!(matches!(
            losses[0].backward().as_ref().map_err(Error::kind),
            Err(ErrorKind::GraphConsumed { .. })
        ));
        assert_eq!(loss()?.backward()?.len(), 1);
        Ok(())
    })
}

#[test]
fn a_backward_pass_runs_in_the_recorded_types() -> Result<()> {
    let (w, b) = (weight(&[0.5, -2.0], &[2, 1]), weight(&[0.25, 1.0], &[2]));
    let x = Var::leaf(Tensor::from_slice(&[0.3_f32, 0.7], &[2, 1], &Device::cpu())?);
    let loss =
        || x.linear(&w, Some(&b))?.gelu(tensor::GeluKind::Erf)?.softmax(1)?.pow_scalar(3.0)?.mean_all();
    let gradients = |inside: bool| -> Result<Vec<Vec<f32>>> {
        let pass =
            |loss: &Var| loss.backward_with(BackwardOptions { create_graph: true, ..Default::default() });
        let found = if inside { autocast(BF16, || pass(&loss()?))? } else { pass(&autocast(BF16, loss)?)? };
        [&w, &b, &x].map(|leaf| found.get(leaf).unwrap().to_vec::<f32>()).into_iter().collect()
    };
    assert_eq!(gradients(true)?, gradients(false)?);
    Ok(())
}

#[test]
fn a_copy_lies_in_memory_as_its_weight_does() -> Result<()> {
    let w = Var::leaf(weight(&[1.0; 6], &[2, 3]).value().t()?);
    let x = ones(&[4, 2], F32);
    let gradients = autocast(BF16, || x.linear(&w, None)?.sum_all())?.backward()?;
    assert_eq!(gradients.get(&w).map(|g| g.strides().to_vec()), Some(w.value().strides().to_vec()));
    Ok(())
}

#[test]
fn nothing_is_kept_beyond_the_outermost_autocast() -> Result<()> {
    let w = weight(&[1.0; 4], &[2, 2]);
    let kept = || CACHE.with_borrow(|cache| cache.as_ref().map(|cache| cache.values.lock().len()));
    autocast(BF16, || {
        autocast(None, || autocast(F16, || w.matmul(&w)))?;
        w.matmul(&w)?;
        assert_eq!(kept(), Some(2));
        Ok(())
    })?;
    assert_eq!(kept(), None);
    Ok(())
}
