using System;
using System.Collections.Generic;
using System.Runtime.InteropServices;

namespace Quire
{
    public sealed partial class Session
    {
        /// <summary>
        /// Queues one segment of text; nothing is computed until a stream is opened. Tokens never span two calls.
        /// `labels`: parts of this text, in bytes of it as UTF-8.
        /// </summary>
        public void Feed(string text, TextFlags flags = TextFlags.None, IEnumerable<Label> labels = null)
        {
            Feed(new ReadOnlySpan<byte>(Utf8.Bytes(text, nameof(text))), flags, labels);
        }

        /// <summary>The same with UTF-8, such as a byte array or a part of one, without a copy.</summary>
        public unsafe void Feed(ReadOnlySpan<byte> text, TextFlags flags = TextFlags.None, IEnumerable<Label> labels = null)
        {
            fixed (byte* data = &MemoryMarshal.GetReference(text)) Feed(data, text.Length, flags, labels);
        }

        private unsafe void Feed(byte* text, int length, TextFlags flags, IEnumerable<Label> labels)
        {
            NativeError error;
            if (labels == null)
            {
                Calls.Check(Native.quire_session_feed_text(Handle, text, (UIntPtr)(uint)length, (uint)flags, out error),
                    ref error);
                return;
            }
            NativeLabel[] array = Label.ToNative(labels);
            fixed (NativeLabel* data = array)
            {
                Calls.Check(Native.quire_session_feed_labelled(Handle, text, (UIntPtr)(uint)length, (uint)flags, data,
                    Calls.Length(array), out error), ref error);
            }
        }

        /// <summary>Queues token ids as they are; no token is added.</summary>
        public unsafe void FeedTokens(IEnumerable<int> tokens)
        {
            int[] ids = Calls.ToArray(tokens, nameof(tokens));
            fixed (int* data = ids)
            {
                Calls.Check(Native.quire_session_feed_tokens(Handle, data, Calls.Length(ids), out NativeError error),
                    ref error);
            }
        }

        /// <summary>The same at positions of their own, one for each token, strictly increasing.</summary>
        public unsafe void FeedTokens(IEnumerable<int> tokens, IEnumerable<long> positions)
        {
            int[] ids = Calls.ToArray(tokens, nameof(tokens));
            long[] places = Calls.ToArray(positions, nameof(positions));
            if (places.Length != ids.Length)
                throw new ArgumentException(places.Length + " positions for " + ids.Length + " tokens");
            fixed (int* data = ids)
            fixed (long* placesData = places)
            {
                Calls.Check(Native.quire_session_feed_positions(Handle, data, placesData, Calls.Length(ids),
                    out NativeError error), ref error);
            }
        }

        /// <summary>Queues messages of a conversation; behind an answer they end its turn first.</summary>
        public unsafe void FeedMessages(IEnumerable<Message> messages, ChatOptions options = null)
        {
            using (var pins = new Pins())
            {
                NativeMessage[] array = Chat.ToNative(messages, pins);
                NativeChatOptions native = ChatOptions.ToNative(options, pins);
                Calls.Check(Native.quire_session_feed_messages(Handle, (NativeMessage*)pins.Array(array),
                    Calls.Length(array), &native, out NativeError error), ref error);
            }
        }

        /// <summary>Forgets what was fed and not yet processed.</summary>
        public void DiscardPending()
        {
            Calls.Check(Native.quire_session_discard_pending(Handle, out NativeError error), ref error);
        }

        /// <summary>Forgets everything; the session is as new.</summary>
        public void Reset()
        {
            Calls.Check(Native.quire_session_reset(Handle, out NativeError error), ref error);
        }

        /// <summary>Forgets the tokens from the tokenCount-th on, pending ones too.</summary>
        public void Truncate(long tokenCount)
        {
            Calls.Check(Native.quire_session_truncate(Handle, tokenCount, out NativeError error), ref error);
        }
    }
}
