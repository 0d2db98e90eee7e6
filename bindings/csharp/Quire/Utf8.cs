using System;
using System.Text;

namespace Quire
{
    /// <summary>Strings as C has them.</summary>
    internal static unsafe class Utf8
    {
        /// <summary>Strict: half of a surrogate pair is an ArgumentException and not another text.</summary>
        internal static readonly UTF8Encoding Encoding = new UTF8Encoding(false, true);

        internal static byte[] Bytes(string text, string name)
        {
            if (text == null) throw new ArgumentNullException(name);
            return Encoding.GetBytes(text);
        }

        internal static string Text(IntPtr data, UIntPtr length)
        {
            int count = checked((int)length.ToUInt64());
            return count == 0 ? "" : System.Text.Encoding.UTF8.GetString((byte*)data, count);
        }

        /// <summary>Text in an array of a struct, up to its NUL.</summary>
        internal static string Terminated(byte* text, int size)
        {
            int count = 0;
            while (count < size && text[count] != 0) count++;
            return count == 0 ? "" : System.Text.Encoding.UTF8.GetString(text, count);
        }

        /// <summary>Static text of the library.</summary>
        internal static string Static(IntPtr text)
        {
            return Terminated((byte*)text, int.MaxValue);
        }
    }
}
