//! `+`, `-`, `*`, `/` between values and with numbers. An operator gives a `Result`, as the method does.

use std::ops::{Add, Div, Mul, Neg, Sub};

use tensor::Result;

use super::scalar_like;
use crate::Var;

impl Add<&Var> for &Var {
    type Output = Result<Var>;
    #[inline]
    fn add(self, rhs: &Var) -> Result<Var> {
        Var::add(self, rhs)
    }
}

impl Sub<&Var> for &Var {
    type Output = Result<Var>;
    #[inline]
    fn sub(self, rhs: &Var) -> Result<Var> {
        Var::sub(self, rhs)
    }
}

impl Mul<&Var> for &Var {
    type Output = Result<Var>;
    #[inline]
    fn mul(self, rhs: &Var) -> Result<Var> {
        Var::mul(self, rhs)
    }
}

impl Div<&Var> for &Var {
    type Output = Result<Var>;
    #[inline]
    fn div(self, rhs: &Var) -> Result<Var> {
        Var::div(self, rhs)
    }
}

impl Neg for &Var {
    type Output = Result<Var>;
    fn neg(self) -> Result<Var> {
        Var::neg(self)
    }
}

impl Add<f64> for &Var {
    type Output = Result<Var>;
    fn add(self, rhs: f64) -> Result<Var> {
        self.add_scalar(rhs)
    }
}

impl Sub<f64> for &Var {
    type Output = Result<Var>;
    fn sub(self, rhs: f64) -> Result<Var> {
        self.add_scalar(-rhs)
    }
}

impl Mul<f64> for &Var {
    type Output = Result<Var>;
    fn mul(self, rhs: f64) -> Result<Var> {
        self.mul_scalar(rhs)
    }
}

impl Div<f64> for &Var {
    type Output = Result<Var>;
    fn div(self, rhs: f64) -> Result<Var> {
        self.div_scalar(rhs)
    }
}

impl Add<&Var> for f64 {
    type Output = Result<Var>;
    fn add(self, rhs: &Var) -> Result<Var> {
        rhs.add_scalar(self)
    }
}

impl Sub<&Var> for f64 {
    type Output = Result<Var>;
    fn sub(self, rhs: &Var) -> Result<Var> {
        rhs.neg()?.add_scalar(self)
    }
}

impl Mul<&Var> for f64 {
    type Output = Result<Var>;
    fn mul(self, rhs: &Var) -> Result<Var> {
        rhs.mul_scalar(self)
    }
}

impl Div<&Var> for f64 {
    type Output = Result<Var>;
    fn div(self, rhs: &Var) -> Result<Var> {
        scalar_like(rhs.value(), self)?.div(rhs)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{close, close_values, gradient, vector};
    use super::*;

    #[test]
    fn same_as_the_methods() -> Result<()> {
        let (a, b) = (vector(&[1.0, 4.0])?, vector(&[2.0, -2.0])?);
        close(&(&a + &b)?, &[3.0, 2.0])?;
        close(&(&a - &b)?, &[-1.0, 6.0])?;
        close(&(&a * &b)?, &[2.0, -8.0])?;
        close(&(&a / &b)?, &[0.5, -2.0])?;
        close(&(-&a)?, &[-1.0, -4.0])?;
        close(&(&a + 1.0)?, &[2.0, 5.0])?;
        close(&(1.0 + &a)?, &[2.0, 5.0])?;
        close(&(&a - 1.0)?, &[0.0, 3.0])?;
        close(&(1.0 - &a)?, &[0.0, -3.0])?;
        close(&(&a * 3.0)?, &[3.0, 12.0])?;
        close(&(3.0 * &a)?, &[3.0, 12.0])?;
        close(&(&a / 4.0)?, &[0.25, 1.0])?;
        close(&(4.0 / &a)?, &[4.0, 1.0])
    }

    #[test]
    fn gradients_flow_through_numbers() -> Result<()> {
        let a = vector(&[1.0, 4.0])?;
        close_values(&gradient(&(&a + 1.0)?, &a)?, &[1.0, 1.0]);
        close_values(&gradient(&(&a - 1.0)?, &a)?, &[1.0, 1.0]);
        close_values(&gradient(&(1.0 - &a)?, &a)?, &[-1.0, -1.0]);
        close_values(&gradient(&(3.0 * &a)?, &a)?, &[3.0, 3.0]);
        close_values(&gradient(&(&a / 4.0)?, &a)?, &[0.25, 0.25]);
        close_values(&gradient(&(4.0 / &a)?, &a)?, &[-4.0, -0.25]);
        Ok(())
    }
}
