using System;
using System.Collections.Generic;
using System.Runtime.InteropServices;

namespace Quire
{
    /// <summary>Text to token ids of one model, and back. Any thread may use it.</summary>
    public sealed unsafe class Tokenizer : QuireObject
    {
        internal Tokenizer(TokenizerHandle handle, QuireObject parent) : base(handle, parent)
        {
            Handle = handle;
        }

        internal TokenizerHandle Handle { get; }

        /// <summary>Number of ids, of the model.</summary>
        public int VocabSize
        {
            get { return Native.quire_tokenizer_get_vocab_size(Handle); }
        }

        /// <summary>The beginning-of-sequence id; -1 where there is none.</summary>
        public int BosToken
        {
            get { return Native.quire_tokenizer_get_bos(Handle); }
        }

        /// <summary>Whether the id ends a text.</summary>
        public bool IsEos(int token)
        {
            return Native.quire_tokenizer_is_eos(Handle, token) != 0;
        }

        /// <summary>Text to ids.</summary>
        public int[] Encode(string text, TextFlags flags = TextFlags.None)
        {
            return Encode(new ReadOnlySpan<byte>(Utf8.Bytes(text, nameof(text))), flags);
        }

        /// <summary>UTF-8 to ids.</summary>
        public int[] Encode(ReadOnlySpan<byte> text, TextFlags flags = TextFlags.None)
        {
            var length = (UIntPtr)(uint)text.Length;
            fixed (byte* pinned = &MemoryMarshal.GetReference(text))
            {
                byte* data = pinned;
                return Calls.Array<int>((IntPtr buffer, UIntPtr capacity, out UIntPtr needed, out NativeError error) =>
                    Native.quire_tokenizer_encode(Handle, data, length, (uint)flags, (int*)buffer, capacity, out needed,
                        out error), text.Length / 2 + 8);
            }
        }

        /// <summary>Ids to text, as one first segment. Bytes that are not UTF-8 become U+FFFD.</summary>
        public string Decode(IEnumerable<int> tokens, DecodeFlags flags = DecodeFlags.None)
        {
            int[] ids = Calls.ToArray(tokens, nameof(tokens));
            using (var pins = new Pins())
            {
                var data = (int*)pins.Array(ids);
                return Calls.Text((IntPtr buffer, UIntPtr capacity, out UIntPtr needed, out NativeError error) =>
                    Native.quire_tokenizer_decode(Handle, data, Calls.Length(ids), (uint)flags, (byte*)buffer, capacity,
                        out needed, out error));
            }
        }

        /// <summary>The bytes that one id stands for, which need not be whole characters.</summary>
        public byte[] TokenBytes(int token)
        {
            return Calls.Array<byte>((IntPtr buffer, UIntPtr capacity, out UIntPtr needed, out NativeError error) =>
                Native.quire_tokenizer_get_token_bytes(Handle, token, (byte*)buffer, capacity, out needed, out error));
        }

        /// <summary>The name of the checkpoint's own chat template. Throws NotFound where it has none.</summary>
        public string ChatTemplate()
        {
            return Calls.Text((IntPtr buffer, UIntPtr capacity, out UIntPtr needed, out NativeError error) =>
                Native.quire_tokenizer_get_chat_template(Handle, (byte*)buffer, capacity, out needed, out error));
        }

        /// <summary>A conversation from its beginning as one text: for looking at, not for feeding.</summary>
        public string RenderChat(IEnumerable<Message> messages, ChatOptions options = null)
        {
            using (var pins = new Pins())
            {
                NativeMessage[] array = Chat.ToNative(messages, pins);
                var data = (NativeMessage*)pins.Array(array);
                NativeChatOptions native = ChatOptions.ToNative(options, pins);
                NativeChatOptions* nativePointer = &native;
                return Calls.Text((IntPtr buffer, UIntPtr capacity, out UIntPtr needed, out NativeError error) =>
                    Native.quire_tokenizer_render_chat(Handle, data, Calls.Length(array), nativePointer, (byte*)buffer,
                        capacity, out needed, out error), Chat.RenderedLength(array));
            }
        }

        /// <summary>The ids of a conversation from its beginning.</summary>
        public int[] EncodeChat(IEnumerable<Message> messages, ChatOptions options = null)
        {
            using (var pins = new Pins())
            {
                NativeMessage[] array = Chat.ToNative(messages, pins);
                var data = (NativeMessage*)pins.Array(array);
                NativeChatOptions native = ChatOptions.ToNative(options, pins);
                NativeChatOptions* nativePointer = &native;
                return Calls.Array<int>((IntPtr buffer, UIntPtr capacity, out UIntPtr needed, out NativeError error) =>
                    Native.quire_tokenizer_encode_chat(Handle, data, Calls.Length(array), nativePointer, (int*)buffer,
                        capacity, out needed, out error), Chat.RenderedLength(array) / 2);
            }
        }
    }
}
