//! Messages to tokens, as a model's chat template writes them.

use crate::text::flag;
use crate::{call, sys, Result, Session, Tokenizer};

/// One message of a conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// "system", "user" or "assistant".
    pub role: &'a str,
    /// What was said.
    pub text: &'a str,
}

impl<'a> Message<'a> {
    /// What the model is told to be.
    pub fn system(text: &'a str) -> Message<'a> {
        Message { role: "system", text }
    }

    /// What a person said.
    pub fn user(text: &'a str) -> Message<'a> {
        Message { role: "user", text }
    }

    /// What the model said.
    pub fn assistant(text: &'a str) -> Message<'a> {
        Message { role: "assistant", text }
    }
}

/// How messages are written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChatOptions {
    /// A known template's name ([`chat_templates`]); `None`: the checkpoint's own.
    pub template: Option<String>,
    /// "2025-06-30", for templates that write a date; `None`: what the template does.
    pub date: Option<String>,
    /// Do not begin the assistant's answer behind the messages.
    pub no_answer: bool,
    /// Tell models that can think first not to.
    pub no_thinking: bool,
}

impl ChatOptions {
    fn raw(&self) -> sys::quire_chat_options {
        let (template_name, template_name_len) = call::option(&self.template);
        let (date, date_len) = call::option(&self.date);
        sys::quire_chat_options {
            flags: flag(self.no_answer, sys::QUIRE_CHAT_NO_ANSWER)
                | flag(self.no_thinking, sys::QUIRE_CHAT_NO_THINKING),
            template_name,
            template_name_len,
            date,
            date_len,
            ..call::init(sys::quire_chat_options_init)
        }
    }
}

fn raw_messages(messages: &[Message<'_>]) -> Vec<sys::quire_message> {
    let raw = |message: &Message<'_>| sys::quire_message {
        role: message.role.as_ptr().cast(),
        role_len: message.role.len(),
        text: message.text.as_ptr().cast(),
        text_len: message.text.len(),
    };
    messages.iter().map(raw).collect()
}

/// Enough for the messages in most templates.
fn rendered_length(messages: &[sys::quire_message]) -> usize {
    messages.iter().map(|message| message.role_len + message.text_len + 64).sum::<usize>() + 256
}

/// The known templates, as JSON: `{"templates": [{"name", "description"}, ...]}`.
///
/// See [`sys::quire_chat_get_list`].
///
/// ```
/// assert!(quire::chat_templates()?.contains("\"llama2\""));
/// # Ok::<(), quire::Error>(())
/// ```
pub fn chat_templates() -> Result<String> {
    call::read_text(0, |buffer, capacity, needed, error| unsafe {
        sys::quire_chat_get_list(buffer, capacity, needed, error)
    })
}

impl Tokenizer {
    /// The name of the checkpoint's own chat template.
    ///
    /// See [`sys::quire_tokenizer_get_chat_template`].
    pub fn chat_template(&self) -> Result<String> {
        call::read_text(64, |buffer, capacity, needed, error| unsafe {
            sys::quire_tokenizer_get_chat_template(self.0.raw(), buffer, capacity, needed, error)
        })
    }

    /// A conversation from its beginning as one text: for looking at, not for feeding, since control tokens and what only
    /// looks like them cannot be told apart in it.
    ///
    /// See [`sys::quire_tokenizer_render_chat`].
    pub fn render_chat(&self, messages: &[Message<'_>], options: &ChatOptions) -> Result<String> {
        let (messages, options) = (raw_messages(messages), options.raw());
        let (data, len) = call::slice(&messages);
        call::read_text(rendered_length(&messages), |buffer, capacity, needed, error| unsafe {
            sys::quire_tokenizer_render_chat(self.0.raw(), data, len, &options, buffer, capacity, needed, error)
        })
    }

    /// The ids of a conversation from its beginning.
    ///
    /// See [`sys::quire_tokenizer_encode_chat`].
    pub fn encode_chat(&self, messages: &[Message<'_>], options: &ChatOptions) -> Result<Vec<i32>> {
        let (messages, options) = (raw_messages(messages), options.raw());
        let (data, len) = call::slice(&messages);
        call::read(rendered_length(&messages) / 2, |ids, capacity, needed, error| unsafe {
            sys::quire_tokenizer_encode_chat(self.0.raw(), data, len, &options, ids, capacity, needed, error)
        })
    }
}

impl Session {
    /// Queues messages: the first ones of an empty session, or more behind messages or behind the answer to them.
    ///
    /// See [`sys::quire_session_feed_messages`].
    ///
    /// ```no_run
    /// # fn run(mut session: quire::Session) -> quire::Result<()> {
    /// use quire::{Message, StreamOptions};
    /// session.feed_messages(&[Message::system("Be brief."), Message::user("Hello")], &Default::default())?;
    /// let answer = session.generate(&StreamOptions::new(200))?; // up to the end of its turn
    /// session.feed_messages(&[Message::user("Why?")], &Default::default())?;
    /// # Ok(()) }
    /// ```
    pub fn feed_messages(&mut self, messages: &[Message<'_>], options: &ChatOptions) -> Result<()> {
        let (messages, options) = (raw_messages(messages), options.raw());
        let (data, len) = call::slice(&messages);
        call::call(|error| unsafe { sys::quire_session_feed_messages(self.raw(), data, len, &options, error) })?;
        Ok(())
    }
}
