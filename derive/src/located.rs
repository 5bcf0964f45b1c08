//! `#[located]`, over tokens: what it looks for is at the top level of an item.

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};
use quote::quote;

pub(crate) fn located(item: TokenStream) -> TokenStream {
    let mut tokens: Vec<TokenTree> = item.into_iter().collect();
    if !has(&tokens, "impl") || has(&tokens, "fn") {
        return function(tokens);
    }
    let is_of_trait = has(&tokens, "for");
    let Some(TokenTree::Group(body)) = tokens.pop() else { return tokens.into_iter().collect() };
    let mut items = TokenStream::new();
    let mut item = Vec::new();
    for token in body.stream() {
        let ends = match &token {
            TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
            TokenTree::Punct(punct) => punct.as_char() == ';',
            _ => false,
        };
        item.push(token);
        if ends {
            let item = std::mem::take(&mut item);
            let is_found = (is_of_trait || is_public(&item)) && may_fail(&item);
            items.extend(if is_found { function(item) } else { item.into_iter().collect() });
        }
    }
    items.extend(item);
    if is_of_trait && has(&tokens, "Forward") {
        items.extend(quote! {
            fn is_located(&self) -> bool {
                true
            }
        });
    }
    tokens.push(TokenTree::Group(Group::new(Delimiter::Brace, items)));
    tokens.into_iter().collect()
}

/// The function with its caller noted.
fn function(mut tokens: Vec<TokenTree>) -> TokenStream {
    let Some(TokenTree::Group(body)) = tokens.pop() else { return tokens.into_iter().collect() };
    let statements = body.stream();
    quote! {
        #[track_caller]
        #(#tokens)*
        {
            let _at = ::device::AtCaller::enter();
            #statements
        }
    }
}

fn has(tokens: &[TokenTree], word: &str) -> bool {
    tokens.iter().any(|token| matches!(token, TokenTree::Ident(ident) if ident == word))
}

fn is_public(tokens: &[TokenTree]) -> bool {
    let at = tokens.iter().position(|token| matches!(token, TokenTree::Ident(ident) if ident == "pub"));
    at.is_some_and(|at| !matches!(tokens.get(at + 1), Some(TokenTree::Group(_))))
}

/// Whether the item is a function that returns a `Result`.
fn may_fail(tokens: &[TokenTree]) -> bool {
    has(tokens, "fn") && has(tokens, "Result")
}
