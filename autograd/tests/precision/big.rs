//! Numbers of any precision, and functions of them by their definitions.

use std::cell::RefCell;

use astro_float_num::{BigFloat, Consts, RoundingMode};

const TO_EVEN: RoundingMode = RoundingMode::ToEven;

thread_local! {
    static CONSTANTS: RefCell<Consts> = RefCell::new(Consts::new().unwrap());
}

/// A number and the bits that operations with it keep.
#[derive(Clone, Debug)]
pub(crate) struct Big {
    value: BigFloat,
    bits: usize,
}

impl Big {
    pub(crate) fn new(value: f64, bits: usize) -> Big {
        if value.is_subnormal() {
            return Big::new(value * 2_f64.powi(600), bits).scaled(-600);
        }
        Big { value: BigFloat::from_f64(value, bits), bits }
    }

    fn with(&self, value: BigFloat) -> Big {
        Big { value, bits: self.bits }
    }

    /// Another number of the same precision.
    pub(crate) fn of(&self, value: f64) -> Big {
        Big::new(value, self.bits)
    }

    pub(crate) fn bits(&self) -> usize {
        self.bits
    }

    pub(crate) fn is_nan(&self) -> bool {
        self.value.is_nan()
    }

    pub(crate) fn is_zero(&self) -> bool {
        self.value.is_zero()
    }

    pub(crate) fn is_positive(&self) -> bool {
        self.value.is_positive() && !self.value.is_zero()
    }

    pub(crate) fn is_negative(&self) -> bool {
        self.value.is_negative() && !self.value.is_zero()
    }

    pub(crate) fn less(&self, other: &Big) -> bool {
        matches!(self.value.cmp(&other.value), Some(order) if order < 0)
    }

    pub(crate) fn add(&self, other: &Big) -> Big {
        self.with(self.value.add(&other.value, self.bits, TO_EVEN))
    }

    pub(crate) fn sub(&self, other: &Big) -> Big {
        self.with(self.value.sub(&other.value, self.bits, TO_EVEN))
    }

    pub(crate) fn mul(&self, other: &Big) -> Big {
        self.with(self.value.mul(&other.value, self.bits, TO_EVEN))
    }

    pub(crate) fn div(&self, other: &Big) -> Big {
        self.with(self.value.div(&other.value, self.bits, TO_EVEN))
    }

    pub(crate) fn plus(&self, other: f64) -> Big {
        self.add(&self.of(other))
    }

    pub(crate) fn times(&self, other: f64) -> Big {
        self.mul(&self.of(other))
    }

    pub(crate) fn neg(&self) -> Big {
        self.with(self.value.neg())
    }

    pub(crate) fn abs(&self) -> Big {
        self.with(self.value.abs())
    }

    pub(crate) fn recip(&self) -> Big {
        self.of(1.0).div(self)
    }

    pub(crate) fn sqrt(&self) -> Big {
        self.with(self.value.sqrt(self.bits, TO_EVEN))
    }

    fn call(&self, f: impl FnOnce(&BigFloat, usize, &mut Consts) -> BigFloat) -> Big {
        CONSTANTS.with_borrow_mut(|constants| self.with(f(&self.value, self.bits, constants)))
    }

    pub(crate) fn exp(&self) -> Big {
        self.call(|x, bits, constants| x.exp(bits, TO_EVEN, constants))
    }

    pub(crate) fn ln(&self) -> Big {
        self.call(|x, bits, constants| x.ln(bits, TO_EVEN, constants))
    }

    pub(crate) fn sin(&self) -> Big {
        self.call(|x, bits, constants| x.sin(bits, TO_EVEN, constants))
    }

    pub(crate) fn cos(&self) -> Big {
        self.call(|x, bits, constants| x.cos(bits, TO_EVEN, constants))
    }

    pub(crate) fn atan(&self) -> Big {
        self.call(|x, bits, constants| x.atan(bits, TO_EVEN, constants))
    }

    /// The integer part.
    pub(crate) fn trunc(&self) -> Big {
        self.with(self.value.int())
    }

    pub(crate) fn pi(&self) -> Big {
        self.call(|_, bits, constants| constants.pi(bits, TO_EVEN))
    }

    /// `self^exponent`; NaN for a negative base unless the exponent is an integer.
    pub(crate) fn pow(&self, exponent: &Big, is_odd: Option<bool>) -> Big {
        let power = self.abs().ln().mul(exponent).exp();
        match (self.is_negative(), is_odd) {
            (false, _) | (true, Some(false)) => power,
            (true, Some(true)) => power.neg(),
            (true, None) => self.with(BigFloat::nan(None)),
        }
    }

    pub(crate) fn sigmoid(&self) -> Big {
        self.neg().exp().plus(1.0).recip()
    }

    pub(crate) fn tanh(&self) -> Big {
        self.times(2.0).sigmoid().times(2.0).plus(-1.0)
    }

    /// The complementary error function.
    pub(crate) fn erfc(&self) -> Big {
        let x = self.to_f64();
        if x < 30.0 {
            // What the difference loses.
            let bits = self.bits + if x > 0.0 { (1.5 * x * x) as usize + 64 } else { 0 };
            let wide = Big { value: self.value.clone(), bits };
            return Big { value: wide.of(1.0).sub(&wide.erf()).value, bits: self.bits };
        }
        // x + (1/2) / (x + (2/2) / (x + (3/2) / ..)), whose terms become more as the precision does.
        let terms = (self.bits as f64 * 0.35 / x).powi(2).ceil() as usize + 20;
        let mut rest = self.of(0.0);
        for k in (1..=terms).rev() {
            rest = self.of(k as f64 / 2.0).div(&self.add(&rest));
        }
        let density = self.mul(self).neg().exp().div(&self.pi().sqrt());
        density.div(&self.add(&rest))
    }

    /// The error function, by a series of terms of one sign.
    pub(crate) fn erf(&self) -> Big {
        let x = self.to_f64();
        if x.abs() >= 30.0 {
            let magnitude = self.of(1.0).sub(&self.abs().erfc());
            return if x > 0.0 { magnitude } else { magnitude.neg() };
        }
        // 2 / sqrt(pi) e^(-x^2) sum 2^n x^(2n + 1) / (1 3 5 .. (2n + 1))
        let square = self.mul(self);
        let (mut term, mut sum) = (self.clone(), self.clone());
        let mut n = 1;
        while !term.is_zero() && term.exponent() > sum.exponent() - self.bits as i64 - 4 {
            term = term.mul(&square).times(2.0).div(&self.of(f64::from(2 * n + 1)));
            sum = sum.add(&term);
            n += 1;
        }
        square.neg().exp().mul(&sum).times(2.0).div(&self.pi().sqrt())
    }

    /// The distribution function of the normal distribution.
    pub(crate) fn normal_cdf(&self) -> Big {
        self.neg().div(&self.of(2.0).sqrt()).erfc().times(0.5)
    }

    /// `e` with `2^e <= |self| < 2^(e + 1)`; far below all floats for 0.
    pub(crate) fn exponent(&self) -> i64 {
        if self.is_zero() { i64::MIN / 4 } else { self.value.exponent().map_or(0, i64::from) - 1 }
    }

    /// `self 2^by`.
    pub(crate) fn scaled(&self, by: i64) -> Big {
        if self.is_zero() {
            return self.clone();
        }
        let mut value = self.value.clone();
        let exponent = i64::from(value.exponent().unwrap()) + by;
        value.set_exponent(exponent as i32);
        self.with(value)
    }

    /// The nearest float or one of its neighbours.
    pub(crate) fn to_f64(&self) -> f64 {
        if self.value.is_nan() {
            return f64::NAN;
        }
        let sign = if self.is_negative() { -1.0 } else { 1.0 };
        if self.value.is_inf() {
            return sign * f64::INFINITY;
        }
        let Some((words, _, _, exponent, _)) = self.value.as_raw_parts().filter(|_| !self.is_zero()) else {
            return 0.0;
        };
        let top = *words.last().unwrap() as f64 / 2_f64.powi(64);
        // In two steps, as a power of two may underflow by itself.
        let (first, second) = (exponent / 2, exponent - exponent / 2);
        sign * top * 2_f64.powi(first) * 2_f64.powi(second)
    }
}
