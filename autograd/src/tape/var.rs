//! `Var`: a tensor with its node on the tape.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use device::{Element, Shared};
use tensor::{DType, Device, Error, ErrorKind, Result, Tensor, Tensors};

use super::{Hook, HookHandle, Node};

/// A tensor through which gradients can flow. Cloning is cheap and returns a handle of the same value.
///
/// ```
/// use autograd::{Device, Tensor, Var};
/// let x = Var::leaf(Tensor::from_slice(&[1.0f64, 2.0, 3.0], &[3], &Device::cpu())?);
/// let loss = (&x * &x)?.sum(&[], false)?;
/// let gradients = loss.backward()?;
/// assert_eq!(gradients.get(&x).map(|g| g.to_vec::<f64>()).transpose()?, Some(vec![2.0, 4.0, 6.0]));
/// # Ok::<(), autograd::Error>(())
/// ```
#[derive(Clone)]
pub struct Var {
    pub(crate) value: Tensor,
    pub(crate) node: Option<Shared<Node>>,
}

/// Identifies a node on the tape; see [`Var::id`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VarId(pub(crate) usize);

#[derive::located]
impl Var {
    /// A value whose gradient is collected, such as a parameter. A tensor of another type than floats has no gradient and
    /// becomes a constant.
    #[track_caller]
    pub fn leaf(value: Tensor) -> Var {
        let node = if value.dtype().is_float() { Some(Node::leaf(&value)) } else { None };
        Var { value, node }
    }

    /// A value through which no gradients flow.
    #[inline]
    pub fn constant(value: Tensor) -> Var {
        Var { value, node: None }
    }

    /// The tensor.
    #[inline]
    pub fn value(&self) -> &Tensor {
        &self.value
    }

    /// The tensor's shape.
    pub fn shape(&self) -> &[usize] {
        self.value.shape()
    }

    /// The number of axes.
    pub fn rank(&self) -> usize {
        self.value.rank()
    }

    /// The number of elements.
    pub fn elements(&self) -> usize {
        self.value.elements()
    }

    /// The only element of the value; see [`Tensor::item`].
    ///
    /// ```
    /// use autograd::{DType, Device, Tensor, Var};
    /// let x = Var::leaf(Tensor::ones(&[3], DType::F32, &Device::cpu())?);
    /// assert_eq!(x.square()?.sum(&[], false)?.item::<f32>()?, 3.0);
    /// # Ok::<(), autograd::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`Tensor::item`].
    pub fn item<T: Element>(&self) -> Result<T> {
        self.value.item()
    }

    /// The elements of the value in row-major order; see [`Tensor::to_vec`].
    ///
    /// # Errors
    /// As for [`Tensor::to_vec`].
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        self.value.to_vec()
    }

    /// The tensor's element type.
    pub fn dtype(&self) -> DType {
        self.value.dtype()
    }

    /// The tensor's device.
    pub fn device(&self) -> &Device {
        self.value.device()
    }

    /// The same tensor as a constant.
    pub fn detach(&self) -> Var {
        Var::constant(self.value.clone())
    }

    /// Whether gradients flow through this value, which they do not through a constant or a [frozen](Var::freeze) leaf.
    #[inline]
    pub fn requires_grad(&self) -> bool {
        self.tracked().is_some()
    }

    /// The node, unless ops take the value as a constant.
    #[inline]
    pub(crate) fn tracked(&self) -> Option<&Shared<Node>> {
        self.node.as_ref().filter(|node| !node.frozen.load(Ordering::Relaxed))
    }

    /// Freezes a leaf, in all of its handles: ops that are recorded from now on take it as a constant, so that backward passes
    /// launch nothing for it, and optimizers leave it alone. Does nothing to other values, and nothing to ops that are recorded
    /// already. A step that was captured before is not replayed any more, which is `Captured`: capture it again. What [`recompute`](crate::recompute) runs is recorded again by the backward pass, which is `InvalidArgument`
    /// if its leaves were frozen or unfrozen in between.
    ///
    /// ```
    /// # use autograd::{Device, Tensor, Var};
    /// let leaf = |x: f64| Ok::<_, autograd::Error>(Var::leaf(Tensor::from_slice(&[x], &[1], &Device::cpu())?));
    /// let (x, w) = (leaf(2.0)?, leaf(3.0)?);
    /// w.freeze();
    /// let gradients = x.mul(&w)?.backward()?;
    /// assert!(gradients.get(&x).is_some() && gradients.get(&w).is_none());
    /// w.unfreeze();
    /// assert!(x.mul(&w)?.backward()?.get(&w).is_some());
    /// # Ok::<(), autograd::Error>(())
    /// ```
    pub fn freeze(&self) {
        self.set_frozen(true);
    }

    /// Undoes [`freeze`](Var::freeze).
    pub fn unfreeze(&self) {
        self.set_frozen(false);
    }

    fn set_frozen(&self, frozen: bool) {
        if let Some(leaf) = self.node.as_ref().filter(|node| node.is_leaf()) {
            leaf.frozen.store(frozen, Ordering::Relaxed);
        }
    }

    /// Whether this value is a leaf, whose gradient is collected unless it is frozen.
    pub fn is_leaf(&self) -> bool {
        self.node.as_ref().is_some_and(|node| node.is_leaf())
    }

    /// The ID of this value's node, the same for all of its handles; `None` for a constant. It may be reused once the last
    /// handle is dropped.
    pub fn id(&self) -> Option<VarId> {
        self.node.as_ref().map(|node| VarId(node.address()))
    }

    /// Calls `hook` with the complete gradient of this value in each backward pass, on the value's own stream. If the hook
    /// returns a gradient, which must have the same shape, type and device, that replaces it.
    ///
    /// The handle owns the hook: dropping or [removing](HookHandle::remove) it drops the hook and what that holds. So a hook
    /// may hold the value itself.
    ///
    /// ```
    /// # use autograd::{Device, Result, Tensor, Var};
    /// let x = Var::leaf(Tensor::from_slice(&[3.0f64], &[1], &Device::cpu())?);
    /// let handle = x.register_hook(|gradient| gradient.mul_scalar(2.0).map(Some))?;
    /// let gradient = || x.square()?.backward()?.get(&x).map(|g| g.item::<f64>()).transpose();
    /// assert_eq!(gradient()?, Some(12.0));
    /// handle.remove();
    /// assert_eq!(gradient()?, Some(6.0));
    /// # Ok::<(), autograd::Error>(())
    /// ```
    ///
    /// # Errors
    /// `NoGradient` if no gradient flows through this value; `GraphConsumed` if a pass has freed what its gradient needs, so
    /// the hook would never be called.
    pub fn register_hook<F>(&self, hook: F) -> Result<HookHandle>
    where
        F: Fn(&Var) -> Result<Option<Var>> + Send + Sync + 'static,
    {
        let node = self.node.as_ref().ok_or(Error::new(ErrorKind::NoGradient { op: "register_hook" }))?;
        let handle = HookHandle(Arc::new(hook));
        node.add_hook(Hook(Arc::downgrade(&handle.0)))?;
        Ok(handle)
    }
}

impl fmt::Debug for Var {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let op = self.node.as_ref().map_or("constant", |node| node.op);
        write!(f, "Var({op}, {:?})", self.value)
    }
}

impl fmt::Display for Var {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.value, f)
    }
}

impl From<Tensor> for Var {
    /// A constant.
    fn from(value: Tensor) -> Var {
        Var::constant(value)
    }
}

/// One value where several are taken.
impl From<Var> for Vec<Var> {
    fn from(value: Var) -> Vec<Var> {
        vec![value]
    }
}

/// The result of a captured step is a constant.
impl Tensors for Var {
    fn rebuild(&self, f: &mut dyn FnMut(&Tensor) -> Result<Tensor>) -> Result<Self> {
        Ok(Var::constant(f(&self.value)?))
    }
}
