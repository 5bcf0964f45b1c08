//! Generates kernel source from an optimizer rule's formula: one statement per operation, each rounded separately, as on the CPU.

use std::any::TypeId;
use std::cell::RefCell;
use std::fmt::{self, Write};
use std::ops::{Add, Div, Mul, Sub};

use crate::rules::{Rule, RuleValue};

/// Type-erased formula of a rule.
#[derive(Clone, Copy)]
pub(crate) struct Formula {
    /// Identifies the formula: type of the rule, and its numbers of operands and hyperparameters.
    pub(super) id: fn() -> TypeId,
    /// Prefix of its kernels' names.
    pub(super) name: fn() -> String,
    pub(super) states: usize,
    /// Source of the rule's struct.
    pub(super) source: fn() -> String,
}

impl Formula {
    pub(crate) const fn of<R, const STATES: usize, const NUMBERS: usize, const FLAGS: usize>() -> Formula
    where
        R: Rule<STATES, NUMBERS, FLAGS>,
    {
        Formula {
            id: TypeId::of::<(R, [(); STATES], [(); NUMBERS], [(); FLAGS])>,
            name: name::<R, STATES, NUMBERS, FLAGS>,
            states: STATES,
            source: source::<R, STATES, NUMBERS, FLAGS>,
        }
    }

    /// Whether both belong to the same rule.
    pub(crate) fn is(&self, other: &Formula) -> bool {
        (self.id)() == (other.id)()
    }
}

/// Rules of one op differ in their states.
fn name<R, const STATES: usize, const NUMBERS: usize, const FLAGS: usize>() -> String
where
    R: Rule<STATES, NUMBERS, FLAGS>,
{
    R::STATES.iter().fold(R::OP.to_owned(), |name, state| name + "_" + state)
}

fn source<R, const STATES: usize, const NUMBERS: usize, const FLAGS: usize>() -> String
where
    R: Rule<STATES, NUMBERS, FLAGS>,
{
    let trace = Trace::default();
    let term = |term| Variable { trace: &trace, term };
    let numbers = std::array::from_fn(|k| term(Term::Number(k)));
    let [p, g] = [0, 1].map(|k| term(Term::Operand(k)));
    let states = std::array::from_fn(|k| term(Term::Operand(k + 2)));
    let (p, states) = R::step(numbers, std::array::from_fn(|k| k), p, g, states);
    // All results are computed before the first operand is overwritten.
    let results = states.map(|state| trace.assign(format_args!("{state}")));
    trace.line(format_args!("values[0] = {p};"));
    for (k, result) in results.iter().enumerate() {
        trace.line(format_args!("values[{}] = {result};", k + 2));
    }
    let (name, operands, body) = (name::<R, STATES, NUMBERS, FLAGS>(), STATES + 2, trace.body.into_inner().0);
    format!(
        "\nstruct {name}_rule {{\n\
         \x20   static constexpr int OPERANDS = {operands};\n\
         \x20   template <class T> static __device__ void step(const StepNumbers& step, T (&values)[{operands}]) {{\n\
         {body}    }}\n}};\nRULE({name}, {operands})\n"
    )
}

/// Statements of a formula so far, and the number of variables that they define.
#[derive(Default)]
struct Trace {
    body: RefCell<(String, usize)>,
}

impl Trace {
    fn line(&self, statement: fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.body.borrow_mut().0, "        {statement}");
    }

    /// A new variable with the value of an expression.
    fn assign(&self, expression: fmt::Arguments<'_>) -> Variable<'_> {
        let term = Term::Result(self.body.borrow().1);
        self.line(format_args!("T {term} = {expression};"));
        self.body.borrow_mut().1 += 1;
        Variable { trace: self, term }
    }
}

/// A variable or constant of the kernel.
#[derive(Clone, Copy)]
enum Term {
    Number(usize),
    Operand(usize),
    /// Of a statement.
    Result(usize),
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Term::Number(k) => write!(f, "from_bits<T>(step.numbers[{k}])"),
            Term::Operand(k) => write!(f, "values[{k}]"),
            Term::Result(k) => write!(f, "x{k}"),
        }
    }
}

#[derive(Clone, Copy)]
struct Variable<'a> {
    trace: &'a Trace,
    term: Term,
}

impl fmt::Display for Variable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.term.fmt(f)
    }
}

macro_rules! operator {
    ($Op:ident, $op:ident, $expression:literal) => {
        impl $Op for Variable<'_> {
            type Output = Self;

            fn $op(self, other: Self) -> Self {
                self.trace.assign(format_args!($expression, self, other))
            }
        }
    };
}
operator!(Add, add, "add_rounded({}, {})");
operator!(Sub, sub, "add_rounded({}, -{})");
operator!(Mul, mul, "mul_rounded({}, {})");
operator!(Div, div, "{} / {}");

impl RuleValue for Variable<'_> {
    /// Its number.
    type Flag = usize;

    fn constant(self, value: f64) -> Self {
        self.trace.assign(format_args!("(T)from_bits<f64>({:#x}ull)", value.to_bits()))
    }

    fn sqrt(self) -> Self {
        self.trace.assign(format_args!("sqrt_of({self})"))
    }

    fn select_less(self, other: Self, yes: Self, no: Self) -> Self {
        self.trace.assign(format_args!("{self} < {other} ? {yes} : {no}"))
    }

    fn choose(flag: usize, yes: Self, no: Self) -> Self {
        yes.trace.assign(format_args!("step.flags >> {flag} & 1 ? {yes} : {no}"))
    }
}
