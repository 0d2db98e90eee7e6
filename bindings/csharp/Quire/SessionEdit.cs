using System;
using System.Collections.Generic;
using System.Runtime.InteropServices;

namespace Quire
{
    /// <summary>How a session's text is edited. What is not set has its default.</summary>
    public sealed class EditOptions
    {
        /// <summary>What is taken over of the text before; default: what comes before the first difference.</summary>
        public EditReuse Reuse { get; set; }

        /// <summary>With EditReuse.Approximate: so many tokens of each run taken over are computed first.</summary>
        public long RereadTokens { get; set; }

        /// <summary>Of a text: ParseSpecial and NoBos; of tokens: None.</summary>
        public TextFlags Flags { get; set; }

        /// <summary>Of a text; null: none.</summary>
        public IEnumerable<Label> Labels { get; set; }

        internal static unsafe NativeEditOptions ToNative(EditOptions options, Pins pins)
        {
            NativeEditOptions native;
            Native.quire_edit_options_init(&native, (UIntPtr)sizeof(NativeEditOptions));
            if (options == null) return native;
            native.flags = (uint)options.Flags;
            native.reuse = (int)options.Reuse;
            native.reread_tokens = options.RereadTokens;
            NativeLabel[] labels = Label.ToNative(options.Labels);
            native.labels = pins.Array(labels);
            native.n_labels = Calls.Length(labels);
            return native;
        }
    }

    public sealed partial class Session
    {
        /// <summary>The session's text becomes this one, the whole of it; what was computed of it stays.</summary>
        public EditResult Edit(string text, EditOptions options = null)
        {
            return Edit(new ReadOnlySpan<byte>(Utf8.Bytes(text, nameof(text))), options);
        }

        /// <summary>The same with UTF-8.</summary>
        public unsafe EditResult Edit(ReadOnlySpan<byte> text, EditOptions options = null)
        {
            using (var pins = new Pins())
            fixed (byte* data = &MemoryMarshal.GetReference(text))
            {
                NativeEditOptions native = EditOptions.ToNative(options, pins);
                NativeEditResult result;
                Native.quire_edit_result_init(&result, (UIntPtr)sizeof(NativeEditResult));
                Calls.Check(Native.quire_session_edit_text(Handle, data, (UIntPtr)(uint)text.Length, &native, &result,
                    out NativeError error), ref error);
                return new EditResult(&result);
            }
        }

        /// <summary>The same with token ids as they are.</summary>
        public unsafe EditResult EditTokens(IEnumerable<int> tokens, EditOptions options = null)
        {
            int[] ids = Calls.ToArray(tokens, nameof(tokens));
            using (var pins = new Pins())
            fixed (int* data = ids)
            {
                NativeEditOptions native = EditOptions.ToNative(options, pins);
                NativeEditResult result;
                Native.quire_edit_result_init(&result, (UIntPtr)sizeof(NativeEditResult));
                Calls.Check(Native.quire_session_edit_tokens(Handle, data, Calls.Length(ids), &native, &result,
                    out NativeError error), ref error);
                return new EditResult(&result);
            }
        }
    }
}
