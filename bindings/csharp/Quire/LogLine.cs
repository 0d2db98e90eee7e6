namespace Quire
{
    /// <summary>A line of the log that was kept (RuntimeOptions.KeptLogLineCount).</summary>
    public sealed class LogLine
    {
        internal LogLine(LogLevel level, string text, long lostCount)
        {
            Level = level;
            Text = text;
            LostCount = lostCount;
        }

        /// <summary>How important it is.</summary>
        public LogLevel Level { get; }

        /// <summary>What it says.</summary>
        public string Text { get; }

        /// <summary>How many lines were lost between the one before and this one, for want of room.</summary>
        public long LostCount { get; }
    }
}
