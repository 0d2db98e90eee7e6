using System;
using System.Collections.Generic;
using System.Linq;

namespace Quire
{
    /// <summary>A message of a conversation.</summary>
    public sealed class Message
    {
        /// <summary>`role`: "system", "user" or "assistant".</summary>
        public Message(string role, string text)
        {
            Role = role ?? throw new ArgumentNullException(nameof(role));
            Text = text ?? throw new ArgumentNullException(nameof(text));
        }

        /// <summary>"system", "user" or "assistant".</summary>
        public string Role { get; }

        /// <summary>What it says.</summary>
        public string Text { get; }
    }

    /// <summary>How messages are written.</summary>
    public sealed class ChatOptions
    {
        /// <summary>A known template's name; null: the checkpoint's own, or the one of the session's messages.</summary>
        public string TemplateName { get; set; }

        /// <summary>"2025-06-30", for templates that write a date; null: what the template does.</summary>
        public string Date { get; set; }

        /// <summary>Whether the assistant's answer is begun behind the messages. The default is true.</summary>
        public bool BeginAnswer { get; set; } = true;

        /// <summary>False tells models that can think first not to. The default is true.</summary>
        public bool Thinking { get; set; } = true;

        internal static unsafe NativeChatOptions ToNative(ChatOptions options, Pins pins)
        {
            NativeChatOptions native;
            Native.quire_chat_options_init(&native, (UIntPtr)sizeof(NativeChatOptions));
            if (options == null) return native;
            ChatFlags flags = (options.BeginAnswer ? 0 : ChatFlags.NoAnswer)
                | (options.Thinking ? 0 : ChatFlags.NoThinking);
            native.flags = (uint)flags;
            native.template_name = pins.Text(options.TemplateName, out native.template_name_len);
            native.date = pins.Text(options.Date, out native.date_len);
            return native;
        }
    }

    /// <summary>Chat templates. Any thread may use this class.</summary>
    public static unsafe class Chat
    {
        /// <summary>The known templates, as JSON: {"templates": [{"name", "description"}, ...]}.</summary>
        public static string Templates()
        {
            return Calls.Text((IntPtr buffer, UIntPtr capacity, out UIntPtr needed, out NativeError error) =>
                Native.quire_chat_get_list((byte*)buffer, capacity, out needed, out error));
        }

        /// <summary>Enough for the messages in most templates.</summary>
        internal static int RenderedLength(NativeMessage[] messages)
        {
            ulong length = 256;
            foreach (NativeMessage message in messages)
                length += message.role_len.ToUInt64() + message.text_len.ToUInt64() + 64;
            return (int)Math.Min(length, int.MaxValue / 2);
        }

        internal static NativeMessage[] ToNative(IEnumerable<Message> messages, Pins pins)
        {
            if (messages == null) throw new ArgumentNullException(nameof(messages));
            return messages.Select(message =>
            {
                var native = new NativeMessage();
                native.role = pins.Text(message.Role, out native.role_len);
                native.text = pins.Text(message.Text, out native.text_len);
                return native;
            }).ToArray();
        }
    }
}
