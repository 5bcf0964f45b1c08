//! `#[derive(Module)]`, which `streamgrad` and its crate `models` give out beside the trait, and the attribute that its
//! ops have.
#![forbid(unsafe_code)]

mod located;

use proc_macro2::TokenStream;
use quote::{quote, quote_spanned};
use syn::ext::IdentExt;
use syn::parse_quote;
use syn::spanned::Spanned;
use syn::{Data, DeriveInput, Error, Field, Fields, Member, Result};

/// Makes a struct a `Module` of its fields, each named after the field, in their order.
///
/// Every field takes part, and so must be a `Module`: a layer, a parameter (`Var`), a buffer (`Tensor`), or an `Option`,
/// `Vec`, array, `Box` or `Arc` of them. What has no parameters is marked:
///
/// - `#[module(skip)]` leaves a field out.
/// - `#[module(flatten)]` gives a field's parts the names that they have in the field, without its own before them.
///
/// The fields of a tuple struct are named `0`, `1` and so on.
#[proc_macro_derive(Module, attributes(module))]
pub fn derive_module(input: proc_macro::TokenStream) -> proc_macro::TokenStream {
    let input = syn::parse_macro_input!(input as DeriveInput);
    implementation(input).unwrap_or_else(Error::into_compile_error).into()
}

/// Gives the errors of a function, or of the public functions of an impl block that return a `Result`, their caller's place
/// in the program. Functions that take closures are left out: those have lines of their own.
#[proc_macro_attribute]
pub fn located(_: proc_macro::TokenStream, item: proc_macro::TokenStream) -> proc_macro::TokenStream {
    located::located(item.into()).into()
}

/// How a field takes part.
enum Role {
    Child,
    Flattened,
    Skipped,
}

fn role(field: &Field) -> Result<Role> {
    let mut role = Role::Child;
    for attribute in field.attrs.iter().filter(|attribute| attribute.path().is_ident("module")) {
        attribute.parse_nested_meta(|meta| {
            let said = match () {
                () if meta.path.is_ident("skip") => Role::Skipped,
                () if meta.path.is_ident("flatten") => Role::Flattened,
                () => return Err(meta.error("expected `skip` or `flatten`")),
            };
            match std::mem::replace(&mut role, said) {
                Role::Child => Ok(()),
                _ => Err(meta.error("a field is either skipped or flattened, and once")),
            }
        })?;
    }
    Ok(role)
}

fn implementation(mut input: DeriveInput) -> Result<TokenStream> {
    let fields = match input.data {
        Data::Struct(data) => data.fields,
        _ => return Err(Error::new_spanned(&input.ident, "`Module` can be derived for a struct only")),
    };
    if let Some(attribute) = input.attrs.iter().find(|attribute| attribute.path().is_ident("module")) {
        return Err(Error::new_spanned(attribute, "`module` belongs to a field"));
    }
    let generic = input.generics.type_params().next().is_some();
    let (mut children, mut children_mut) = (Vec::new(), Vec::new());
    for (field, member) in fields.iter().zip(Fields::members(&fields)) {
        let name = match (role(field)?, &member) {
            (Role::Skipped, _) => continue,
            (Role::Flattened, _) => String::new(),
            (Role::Child, Member::Named(name)) => name.unraw().to_string(),
            (Role::Child, Member::Unnamed(index)) => index.index.to_string(),
        };
        let of = &field.ty;
        if generic {
            input.generics.make_where_clause().predicates.push(parse_quote!(#of: ::streamgrad::Module));
        }
        children.push(quote_spanned!(of.span() => parts.child(#name, &self.#member);));
        children_mut.push(quote!(::streamgrad::Module::parts_mut(&mut self.#member, parts);));
    }
    let name = &input.ident;
    let (generics, arguments, bounds) = input.generics.split_for_impl();
    Ok(quote! {
        #[automatically_derived]
        impl #generics ::streamgrad::Module for #name #arguments #bounds {
            fn parts<'parts>(&'parts self, parts: &mut ::streamgrad::Parts<'parts>) {
                let _ = &parts;
                #(#children)*
            }

            fn parts_mut(&mut self, parts: &mut ::streamgrad::PartsMut<'_>) {
                let _ = &parts;
                #(#children_mut)*
            }
        }
    })
}
