//! `+`, `-`, `*` and `/` as the methods of their names; see [`Operand`](tensor::Operand).

use crate::Var;

tensor::operators!(Var, Var::value);

#[cfg(test)]
mod tests {
    use tensor::Result;

    use super::super::testing::{close, close_values, gradient, vector};
    use super::*;

    /// Every pair of operands of one operator: values `a op b`, `a op 3` and `3 op a`, and their gradients.
    macro_rules! check {
        ($op:tt, $method:ident) => {{
            let (a, b) = (vector(&[1.0, 4.0])?, vector(&[2.0, -2.0])?);
            let three = Var::constant(vector(&[3.0])?.value().clone());
            let owned = |x: &Var| x.clone();
            let good = |x: &Var| Result::Ok(x.clone());
            let same = |found: Result<Var>, expected: Result<Var>| -> Result<()> {
                let (found, expected) = (found?, expected?);
                close(&found, &expected.value().to_vec::<f64>()?)?;
                for x in [&a, &b] {
                    close_values(&gradient(&found, x)?, &gradient(&expected, x)?);
                }
                Ok(())
            };
            for found in [
                &a $op &b, owned(&a) $op &b, &a $op owned(&b), owned(&a) $op owned(&b),
                &a $op good(&b), owned(&a) $op good(&b), good(&a) $op &b, good(&a) $op owned(&b),
            ] {
                same(found, a.$method(&b))?;
            }
            for found in [&a $op 3.0, owned(&a) $op 3.0, &a $op 3.0_f32, owned(&a) $op 3.0_f32, &a $op 3, owned(&a) $op 3] {
                same(found, a.$method(&three))?;
            }
            for found in [3.0 $op &a, 3.0 $op owned(&a), 3 $op &a, 3 $op owned(&a)] {
                same(found, three.$method(&a))?;
            }
        }};
    }

    #[test]
    fn operators_and_their_gradients_are_those_of_the_methods() -> Result<()> {
        check!(+, add);
        check!(-, sub);
        check!(*, mul);
        check!(/, div);
        let a = vector(&[1.0, 4.0])?;
        close(&(-&a)?, &[-1.0, -4.0])?;
        close_values(&gradient(&(-a.clone())?, &a)?, &[-1.0, -1.0]);
        Ok(())
    }

    #[test]
    fn gradients_flow_through_a_chain() -> Result<()> {
        let (a, b) = (vector(&[1.0, 4.0])?, vector(&[2.0, -2.0])?);
        let y = ((1.0 - &a)? + 2 * &a * &b / &b * &b)?;
        close(&y, &[4.0, -19.0])?;
        close_values(&gradient(&y, &a)?, &[3.0, -5.0]);
        close_values(&gradient(&y, &b)?, &[2.0, 8.0]);
        Ok(())
    }
}
